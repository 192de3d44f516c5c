import react from "@vitejs/plugin-react";
import license from "rollup-plugin-license";
import { defineConfig } from "vite";

// The server that is developed against; its Host is its own, so that the ingress answers.
const server = process.env.FUMEHOOD_URL ?? "http://127.0.0.1:8765";
const proxied = { target: server, changeOrigin: true, ws: true };

const CELLS =
  /src\/(output|results\/(ResultView|HtmlFrame|ChartView|chart|DataGrid|JsonView|json|Picture|Plain)|parts\/follow|api\/feed|audit\/(start|worker)|panels\/(Audit|Files|Naming|drafts|Isolation|Variables)|views\/(useCells|Transcript|CellView|Export))|@lezer/;

// What more than one document or view needs, and what the entry of the console must not carry: a change of the entry would
// give every chunk that imports it another name, and a share would load it.
const BASE =
  /src\/(api\/(client|place|problem|queries|reader|watch)|parts\/(Boundary|LiveLost|Problems|State|Times|actName|format|hooks|letters|policy|rights|theme))\.|vite\/preload-helper|@tanstack\/(react-query|query-core)/;
// What is shown over a view, and long lists: nothing that a share needs before it is opened.
const WIDGETS =
  /src\/parts\/(Confirm|Question)\.|node_modules\/(@radix-ui|@floating-ui|@tanstack|aria-hidden|get-nonce|react-remove-scroll|react-style-singleton|use-callback-ref|use-sidecar|tslib)/;

export default defineConfig({
  base: "/console/",
  plugins: [
    react(),
    license({
      thirdParty: {
        output: { file: "../src/fumehood/console/dist/THIRD_PARTY.txt" },
        allow: {
          test: "(MIT OR Apache-2.0 OR ISC OR BSD-3-Clause OR BSD-2-Clause OR 0BSD OR Unlicense OR MPL-2.0)",
          failOnViolation: true,
        },
      },
    }),
  ],
  build: {
    outDir: "../src/fumehood/console/dist",
    emptyOutDir: true,
    target: "es2022",
    // An asset in a data address would need a wider policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // The server reads it, to name the code of a view beside the document.
    manifest: "chunks.json",
    // The view of a share has a document of its own, without what acts.
    rolldownOptions: {
      input: ["index.html", "share.html"],
      // What every view with cells needs is one file: each request of a cold load waits for those before it.
      output: {
        codeSplitting: {
          includeDependenciesRecursively: false,
          groups: [
            { name: "cells", test: CELLS },
            { name: "base", test: BASE },
            { name: "widgets", test: WIDGETS },
          ],
        },
      },
    },
  },
  server: { port: 5173, proxy: { "/v1": proxied, "/console/frame": proxied, "/share/frame": proxied } },
});
