// Rules for the scripts of reports. These stand in one page one after another and share one scope:
// what one of them declares, the others may use. Imports nothing that is not Node's own.

import { readdirSync, readFileSync } from "node:fs";

const FOLDER = new URL("src/meshwright/page/static/script/", import.meta.url);
const DECLARED = /^(?:async )?(?:function\*?|const|let|class) (\w+)/gm;
const BROWSER = [
  "atob", "Blob", "cancelAnimationFrame", "console", "DecompressionStream", "devicePixelRatio", "document",
  "getComputedStyle", "HTMLElement", "ImageData", "matchMedia", "navigator", "performance", "Path2D",
  "requestAnimationFrame", "requestIdleCallback", "ResizeObserver", "Response", "setTimeout", "clearTimeout",
  "TextDecoder", "uPlot", "window",
];

const globals = Object.fromEntries(BROWSER.map((name) => [name, "readonly"]));
for (const name of readdirSync(FOLDER)) {
  for (const found of readFileSync(new URL(name, FOLDER), "utf8").matchAll(DECLARED)) {
    globals[found[1]] = "readonly";
  }
}

// Names of a graph are text: nothing may make HTML or code of them.
const HTML = ["innerHTML", "outerHTML", "insertAdjacentHTML", "write", "writeln", "srcdoc", "createContextualFragment"];

export default [
  {
    files: ["src/meshwright/page/static/script/*.js"],
    languageOptions: { ecmaVersion: 2022, sourceType: "script", globals },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "no-restricted-properties": ["error", ...HTML.map((property) => ({ property }))],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-script-url": "error",
      "no-undef": "error",
      "no-unused-vars": ["error", { vars: "local", args: "after-used" }],
      "no-shadow": ["error", { builtinGlobals: false, hoist: "functions" }],
      "no-var": "error",
      "prefer-const": "error",
      "strict": ["error", "global"],
      "eqeqeq": "error",
      "no-const-assign": "error",
      "no-dupe-args": "error",
      "no-dupe-else-if": "error",
      "no-dupe-keys": "error",
      "no-duplicate-case": "error",
      "no-empty": "error",
      "no-fallthrough": "error",
      "no-func-assign": "error",
      "no-loss-of-precision": "error",
      "no-redeclare": ["error", { builtinGlobals: false }],
      "no-self-assign": "error",
      "no-self-compare": "error",
      "no-sparse-arrays": "error",
      "no-unreachable": "error",
      "no-unsafe-finally": "error",
      "no-unsafe-negation": "error",
      "no-unused-expressions": "error",
      "no-useless-escape": "error",
      "use-isnan": "error",
      "valid-typeof": "error",
      "default-case-last": "error",
      "no-throw-literal": "error",
      "require-atomic-updates": "error",
    },
  },
];
