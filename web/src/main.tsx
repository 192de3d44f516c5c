/** The start of the page: the login's code leaves the address before anything else happens. */

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App, loadEarly } from "./App";
import { askEarly } from "./api/queries";
import { narrowPolicy } from "./parts/policy";
import { applyTheme, keptTheme } from "./parts/theme";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/views.css";
import "./styles/cells.css";
import "./styles/results.css";
import "./styles/composer.css";
import "./styles/inspector.css";

function takeCode(): string | null {
  const found = /^#login=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (location.hash.startsWith("#login="))
    history.replaceState(null, "", location.pathname + location.search);
  return found?.[1] ?? null;
}

function start(root: HTMLElement): void {
  const code = takeCode();
  narrowPolicy();
  if (code === null) {
    loadEarly(location.pathname);
    askEarly(location);
  }
  applyTheme(keptTheme());
  createRoot(root).render(
    <StrictMode>
      <App code={code} />
    </StrictMode>,
  );
}

// A chunk of the page of a share may import this one for what both use: the console begins in its own document alone.
const root = document.querySelector<HTMLElement>("#root[data-console]");
if (root) start(root);
