/** One result: of its formats the one that says most, by data before markup, and the others as a choice. */

import { lazy, type ReactNode, Suspense, useState } from "react";
import { isShare } from "../api/reader";
import type { Result } from "../api/types";
import { Code } from "../output/Code";
import { Boundary } from "../parts/Boundary";
import { bytes, visible, visibleLine } from "../parts/format";
import { ChartView } from "./ChartView";
import { readChart } from "./chart";
import { DataGrid, readFrame } from "./DataGrid";
import { HtmlFrame } from "./HtmlFrame";
import { JsonView } from "./JsonView";
import { Download, decoded, Raster, Vector } from "./Picture";
import { Plain, TEXT_CHARACTERS } from "./Plain";

const Markdown = lazy(() => import("./Markdown"));
const DATA = "application/vnd.fumehood.data+json";

type Way = { name: string; show: () => ReactNode };

type Given = { result: Result; path?: string | null };

/** Shows a result; `path` is where the text of its formats is. */
export function ResultView({ result, path = null }: Given) {
  return (
    <Boundary of={result} instead={<p className="note">This result could not be shown.</p>}>
      <Ways result={result} path={path} />
    </Boundary>
  );
}

function Ways({ result, path }: { result: Result; path: string | null }) {
  const ways = waysOf(result, path);
  const [chosen, setChosen] = useState(0);
  const way = ways[Math.min(chosen, ways.length - 1)];
  const cut = Object.entries(result.truncated);

  return (
    <div className={result.is_main_result ? "result main" : "result"}>
      {ways.length > 1 && (
        <fieldset className="ways">
          <legend className="unseen">Show this result as</legend>
          {ways.map((each, index) => (
            <button
              key={each.name}
              type="button"
              className="subtle"
              aria-pressed={index === chosen}
              onClick={() => setChosen(index)}
            >
              {each.name}
            </button>
          ))}
        </fieldset>
      )}
      <Boundary of={way?.name} instead={<p className="note">It could not be shown as {way?.name}.</p>}>
        <Shown key={way?.name} show={way?.show} />
      </Boundary>
      {cut.length > 0 && (
        <p className="note">
          Cut to the limit of results:{" "}
          {cut.map(([mime, size]) => `${visibleLine(mime, 60)} had ${bytes(size)}`).join(", ")}.
        </p>
      )}
    </div>
  );
}

/** Rendered within the wall, so that its failure is held by it. */
function Shown({ show }: { show: (() => ReactNode) | undefined }) {
  return show?.();
}

function waysOf(result: Result, path: string | null): Way[] {
  const ways: Way[] = [];
  const { data, chart, png, jpeg, svg, html, markdown, latex, json, javascript, pdf, text } = result;
  const frame = data ? readFrame(data) : null;
  const drawn = chart ? readChart(chart) : null;

  if (frame) {
    const about = result.metadata[DATA] as { rows?: number; truncated?: boolean } | undefined;
    ways.push({ name: "Table", show: () => <DataGrid frame={frame} metadata={about ?? {}} /> });
  }
  if (drawn) ways.push({ name: "Chart", show: () => <ChartView chart={drawn} /> });
  if (png) ways.push({ name: "Picture", show: () => <Raster base64={png} type="image/png" /> });
  if (jpeg) ways.push({ name: "JPEG", show: () => <Raster base64={jpeg} type="image/jpeg" /> });
  if (svg) ways.push({ name: "SVG", show: () => <Vector svg={svg} /> });
  if (markdown !== undefined && markdown !== null) {
    ways.push({
      name: "Markdown",
      show: () => (
        <Suspense fallback={<pre className="plain-text">{visible(markdown.slice(0, TEXT_CHARACTERS))}</pre>}>
          <Markdown text={markdown} />
        </Suspense>
      ),
    });
  }
  if (html) ways.push({ name: "HTML", show: () => <HtmlFrame html={html} /> });
  if (latex) ways.push({ name: "LaTeX", show: () => <Plain text={latex} /> });
  if (json !== undefined && json !== null)
    ways.push({ name: "JSON", show: () => <JsonView value={json} path={path} /> });
  if (javascript) ways.push({ name: "JavaScript", show: () => <Script code={javascript} /> });
  if (pdf) ways.push({ name: "PDF", show: () => <File base64={pdf} /> });
  for (const [mime, value] of Object.entries(result.extra)) {
    ways.push({
      name: visibleLine(mime, 40),
      show: () => <Plain text={typeof value === "string" ? value : JSON.stringify(value)} />,
    });
  }
  if (text !== undefined && text !== null && (text !== "" || ways.length === 0))
    ways.push({ name: "Text", show: () => <Plain text={text} /> });
  return ways.length > 0
    ? ways
    : [{ name: "Nothing", show: () => <p className="note">This result has no content.</p> }];
}

function Script({ code }: { code: string }) {
  const [isRun, setRun] = useState(false);
  // As text of a script element: its own end in it would end it.
  const html = `<div id="element"></div><script>const element = document.getElementById("element");\n${code.replaceAll("</", "<\\/")}</script>`;
  return (
    <>
      <Code code={code} />
      {isShare() ? null : isRun ? (
        <HtmlFrame html={html} startsMoving />
      ) : (
        <button type="button" onClick={() => setRun(true)}>
          Run it in a frame of its own
        </button>
      )}
    </>
  );
}

function File({ base64 }: { base64: string }) {
  const content = decoded(base64);
  if (!content) return <p className="note">This is no PDF, though its type says it is.</p>;
  return (
    <p>
      A PDF of {bytes(content.length)}.{" "}
      <Download content={content} type="application/pdf" name="result.pdf" />
    </p>
  );
}
