"use strict";
// Unpacks DEFLATE (RFC 1951) where the browser has no DecompressionStream of its own.

const INFLATE_BASES = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const INFLATE_EXTRA = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const INFLATE_FAR = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577];
const INFLATE_FAR_EXTRA = [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13];
const INFLATE_ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/** A canonical Huffman code: how many codes there are of each length, and the symbols in order. */
function makeCode(lengths) {
  const counts = new Uint16Array(16), offsets = new Uint16Array(16);
  for (const length of lengths) counts[length]++;
  counts[0] = 0;
  for (let k = 1; k < 16; k++) offsets[k] = offsets[k - 1] + counts[k - 1];
  const symbols = new Uint16Array(lengths.length);
  lengths.forEach((length, symbol) => { if (length) symbols[offsets[length]++] = symbol; });
  return { counts, symbols };
}

/** The bytes of a raw DEFLATE stream. */
function inflate(source) {
  let place = 0, hold = 0, held = 0, size = 0;
  let out = new Uint8Array(Math.max(1024, source.length * 4));

  function bits(count) {
    while (held < count) { hold |= source[place++] << held; held += 8; }
    const value = hold & ((1 << count) - 1);
    hold >>>= count;
    held -= count;
    return value;
  }

  function symbolOf(code) {
    let value = 0, first = 0, index = 0;
    for (let length = 1; length < 16; length++) {
      value |= bits(1);
      const count = code.counts[length];
      if (value - count < first) return code.symbols[index + value - first];
      index += count;
      first = (first + count) << 1;
      value <<= 1;
    }
    throw new Error("inflate: not a DEFLATE stream");
  }

  function room(more) {
    if (size + more <= out.length) return;
    const larger = new Uint8Array(Math.max(out.length * 2, size + more));
    larger.set(out);
    out = larger;
  }

  function copyStored() {
    hold = 0;
    held = 0;
    const count = source[place] | (source[place + 1] << 8);
    place += 4;
    room(count);
    out.set(source.subarray(place, place + count), size);
    size += count;
    place += count;
  }

  function readCodes() {
    const numLiterals = bits(5) + 257, numFar = bits(5) + 1, numLengths = bits(4) + 4;
    const lengths = new Array(19).fill(0);
    for (let k = 0; k < numLengths; k++) lengths[INFLATE_ORDER[k]] = bits(3);
    const code = makeCode(lengths), all = [];
    while (all.length < numLiterals + numFar) {
      const symbol = symbolOf(code);
      if (symbol < 16) { all.push(symbol); continue; }
      const value = symbol === 16 ? all[all.length - 1] : 0;
      let count = symbol === 16 ? 3 + bits(2) : symbol === 17 ? 3 + bits(3) : 11 + bits(7);
      while (count--) all.push(value);
    }
    return [makeCode(all.slice(0, numLiterals)), makeCode(all.slice(numLiterals))];
  }

  function fixedCodes() {
    const lengths = [];
    for (let k = 0; k < 288; k++) lengths.push(k < 144 ? 8 : k < 256 ? 9 : k < 280 ? 7 : 8);
    return [makeCode(lengths), makeCode(new Array(30).fill(5))];
  }

  function copyBlock(literals, far) {
    for (;;) {
      const symbol = symbolOf(literals);
      if (symbol === 256) return;
      if (symbol < 256) { room(1); out[size++] = symbol; continue; }
      const length = INFLATE_BASES[symbol - 257] + bits(INFLATE_EXTRA[symbol - 257]);
      const code = symbolOf(far);
      const back = INFLATE_FAR[code] + bits(INFLATE_FAR_EXTRA[code]);
      room(length);
      for (let k = 0; k < length; k++, size++) out[size] = out[size - back];
    }
  }

  for (let isLast = 0; !isLast;) {
    isLast = bits(1);
    const kind = bits(2);
    if (kind === 0) copyStored();
    else copyBlock(...(kind === 1 ? fixedCodes() : readCodes()));
  }
  return out.subarray(0, size);
}
