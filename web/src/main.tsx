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

const code = takeCode();
narrowPolicy();
if (code === null) {
  loadEarly(location.pathname);
  askEarly(location);
}
applyTheme(keptTheme());
const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <App code={code} />
    </StrictMode>,
  );
}
