/** The page of a share: its secret leaves the address before anything else happens. */

import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { asProblem } from "../api/problem";
import { beShare } from "../api/reader";
import { narrowPolicy } from "../parts/policy";
import { applyTheme, keptTheme } from "../parts/theme";
import { Opening } from "./Opening";
import "../styles/base.css";
import "../styles/parts.css";
import "../styles/views.css";
import "../styles/cells.css";
import "../styles/results.css";
import "../styles/inspector.css";

/** Returns the share of the address and its secret, which is kept where a reload of this tab finds it. */
function takeSecret(): { shareId: string; secret: string } {
  const found = /^#([A-Za-z0-9_-]{1,100})$/.exec(location.hash);
  const kept: unknown = history.state;
  const secret = found?.[1] ?? (typeof kept === "string" ? kept : "");
  history.replaceState(secret, "", location.pathname);
  return { shareId: location.pathname.split("/").at(-1) ?? "", secret };
}

const given = takeSecret();
beShare();
narrowPolicy("/share/frame");
applyTheme(keptTheme());
const client = new QueryClient({
  defaultOptions: {
    queries: { retry: (count, error) => count < 2 && asProblem(error).isPassing, staleTime: 1000 },
  },
});
const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <Opening {...given} />
      </QueryClientProvider>
    </StrictMode>,
  );
}
