"use strict";
// The data of the page: one document, and columns that are unpacked when they are asked for.

const PAGE = JSON.parse(document.getElementById("page-data").textContent);
const COLUMNS = new Map();

function decodeBase64(text) {
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let k = 0; k < binary.length; k++) bytes[k] = binary.charCodeAt(k);
  return bytes;
}

async function unpack(bytes) {
  if (typeof DecompressionStream !== "function") return inflate(bytes);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Puts the bytes of each number together again, which are stored by their weight. */
function gatherBytes(bytes, count, width) {
  if (width === 1) return bytes;
  const found = new Uint8Array(count * width);
  for (let byte = 0; byte < width; byte++) {
    const from = byte * count;
    for (let k = 0; k < count; k++) found[k * width + byte] = bytes[from + k];
  }
  return found;
}

async function decodeColumn(column) {
  const bytes = await unpack(decodeBase64(document.getElementById(`blob-${column.blob}`).textContent));
  if (column.kind === "texts") return JSON.parse(new TextDecoder().decode(bytes));
  const buffer = gatherBytes(bytes, column.count, column.bytes).slice().buffer;
  if (column.kind === "float") return new Float32Array(buffer);
  if (column.kind === "whole") return new [Uint8Array, Uint16Array, null, Uint32Array][column.bytes - 1](buffer);
  const values = new Uint32Array(buffer);
  for (let k = 1; k < values.length; k++) values[k] += values[k - 1];
  return values;
}

/** The numbers or texts of a column; each is unpacked once. */
function readColumn(column) {
  if (!COLUMNS.has(column.blob)) COLUMNS.set(column.blob, decodeColumn(column));
  return COLUMNS.get(column.blob);
}

/** The same object with its columns in the place of what describes them. */
async function readColumns(columns) {
  const names = Object.keys(columns);
  const values = await Promise.all(names.map((name) => readColumn(columns[name])));
  return Object.fromEntries(names.map((name, k) => [name, values[k]]));
}
