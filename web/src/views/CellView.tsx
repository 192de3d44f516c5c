/** One cell: its code, what it printed and showed, how it ended, what it used. Its content is read when it is seen. */

import { useQuery } from "@tanstack/react-query";
import { memo, useEffect, useMemo, useRef, useState } from "react";
import { get, segment, send } from "../api/client";
import type { Feed } from "../api/feed";
import { usePlacePath } from "../api/place";
import { isShare } from "../api/reader";
import type { Cell, CellError, Execution, InputRequest } from "../api/types";
import { Code } from "../output/Code";
import { OutputLines } from "../output/lines";
import { OutputView } from "../output/OutputView";
import { useOutput } from "../output/useOutput";
import { bytes, clock, seconds, shortId, visible, visibleLine } from "../parts/format";
import { copy, useNow } from "../parts/hooks";
import { ProblemBox } from "../parts/Problems";
import { ResultView } from "../results/ResultView";

type WholeCell = Cell & { seq?: number };
type Given = {
  sandboxId: string;
  cell: Cell;
  number: number;
  feed: Feed;
  isLive: boolean;
  isChosen: boolean;
  choose: () => void;
  reuse: ((code: string) => void) | null;
};

const VIAS: Record<string, string> = {
  api: "API",
  e2b: "E2B",
  jupyter: "Jupyter",
  mcp: "MCP",
  openai: "OpenAI",
  fusion: "SandboxFusion",
  librechat: "LibreChat",
  replit: "Replit",
};

export const CellView = memo(function CellView({
  sandboxId,
  cell,
  number,
  feed,
  isLive,
  isChosen,
  choose,
  reuse,
}: Given) {
  const isRunning = cell.state === "running";
  const place = usePlacePath(sandboxId);
  const whole = useQuery({
    queryKey: ["cell", place.includes("/records/") ? `record ${sandboxId}` : sandboxId, cell.id],
    queryFn: ({ signal }) => get<WholeCell>(`${place}/executions/${segment(cell.id)}`, signal),
    enabled:
      isRunning ||
      cell.output_characters > 0 ||
      cell.results.length > 0 ||
      cell.error !== null ||
      cell.changes !== null,
    staleTime: isRunning ? 0 : Number.POSITIVE_INFINITY,
    refetchInterval: isRunning && !isLive ? 1000 : false,
    refetchOnWindowFocus: false,
    refetchOnMount: isRunning,
  });
  // It may have ended since it was read.
  const { refetch } = whole;
  const wasRunning = useRef(isRunning);
  useEffect(() => {
    if (wasRunning.current && !isRunning) refetch();
    wasRunning.current = isRunning;
  }, [isRunning, refetch]);

  const execution = whole.data?.execution ?? null;
  const error = cell.error ?? execution?.error ?? null;
  const input = cell.input_request ?? whole.data?.input_request ?? null;

  return (
    <article
      className={`cell ${outcomeClass(cell)} ${cell.is_undone ? "undone" : ""} ${isChosen ? "chosen" : ""}`}
      aria-label={`Cell ${number}`}
      id={`cell-${cell.id}`}
    >
      <CellHead cell={cell} number={number} execution={execution} choose={choose} reuse={reuse} />
      {cell.state_lost && (
        <p className="lost">The context was lost here: the variables before it are gone.</p>
      )}
      <Code code={cell.code} />
      <Outputs id={cell.id} whole={whole.data} feed={feed} />
      {execution?.results.map((result, index) => (
        <ResultView
          // biome-ignore lint/suspicious/noArrayIndexKey: results of an execution are only appended
          key={index}
          result={result}
          path={`${place}/executions/${segment(cell.id)}/results/${index}`}
        />
      ))}
      {error && <ErrorView error={error} />}
      {isRunning && input && isShare() && <p className="note">The code waits for input.</p>}
      {isRunning && input && !isShare() && (
        <InputField sandboxId={sandboxId} executionId={cell.id} request={input} answered={refetch} />
      )}
      {whole.error && !whole.data && (
        <ProblemBox error={whole.error} retry={() => refetch()} title="Its content could not be read" />
      )}
      <Notes cell={cell} execution={execution} />
    </article>
  );
});

function CellHead({
  cell,
  number,
  execution,
  choose,
  reuse,
}: Pick<Given, "cell" | "number" | "choose" | "reuse"> & { execution: Execution | null }) {
  const usage = cell.usage ?? execution?.usage;
  const cpu = usage ? usage.user_cpu_seconds + usage.system_cpu_seconds : null;
  const changes = cell.changes;
  const who = [
    cell.by && cell.by !== "owner" ? `key ${shortId(cell.by)}` : cell.by,
    VIAS[cell.via] ?? visibleLine(cell.via, 20),
  ]
    .filter(Boolean)
    .join(" · ");

  return (
    <header className="cell-head">
      <button type="button" className="number" onClick={choose} title="Choose this cell">
        [{number}]
      </button>
      <Outcome cell={cell} />
      {usage && cell.state === "ended" && (
        <span className="quiet" title={`CPU ${seconds(cpu)}, most memory ${bytes(usage.peak_memory_bytes)}`}>
          {seconds(usage.wall_seconds)} · CPU {seconds(cpu)} · {bytes(usage.peak_memory_bytes)}
        </span>
      )}
      {cell.is_undone && <span className="chip">undone</span>}
      {changes && changes.variables > 0 && (
        <span className="chip">{count(changes.variables, "variable")}</span>
      )}
      {changes && changes.files > 0 && <span className="chip">{count(changes.files, "file")}</span>}
      {cell.tool_calls > 0 && <span className="chip">{count(cell.tool_calls, "tool call")}</span>}
      <span className="quiet who">
        {who} {who && cell.started_at && "· "}
        <time
          dateTime={cell.started_at ?? undefined}
          title={cell.started_at ? new Date(cell.started_at).toISOString() : ""}
        >
          {clock(cell.started_at)}
        </time>
      </span>
      <button
        type="button"
        className="subtle small"
        onClick={() => copy(cell.code)}
        aria-label={`Copy the code of cell ${number}`}
      >
        Copy
      </button>
      {reuse && (
        <button
          type="button"
          className="subtle small"
          onClick={() => reuse(cell.code)}
          aria-label={`Edit the code of cell ${number}`}
        >
          Edit
        </button>
      )}
    </header>
  );
}

function Outcome({ cell }: { cell: Cell }) {
  if (cell.state === "running") return <Running since={cell.started_at} />;
  if (cell.outcome === "ok") return <span className="good">✓ ok</span>;
  return <span className="bad">✗ {visibleLine(cell.error?.name || cell.outcome || "ended", 60)}</span>;
}

function Running({ since }: { since: string | null }) {
  const now = useNow();
  return (
    <span className="good">
      <span aria-hidden="true">◐</span> running
      {since ? ` ${Math.max(0, Math.round((now - Date.parse(since)) / 1000))} s` : ""}
    </span>
  );
}

function Outputs({ id, whole, feed }: { id: string; whole: WholeCell | undefined; feed: Feed }) {
  const read = useMemo(
    () =>
      whole
        ? {
            entries: whole.execution?.logs.entries ?? [],
            seq: whole.seq ?? Number.POSITIVE_INFINITY,
            isRunning: whole.state === "running",
          }
        : null,
    [whole],
  );
  const [output, revision] = useOutput(id, read, feed);
  return <OutputView output={output} revision={revision} />;
}

function ErrorView({ error }: { error: CellError }) {
  const trace = useMemo(() => {
    const output = new OutputLines();
    output.append("stdout", error.traceback, null);
    return output;
  }, [error.traceback]);

  return (
    <div className="error">
      <strong>
        {visibleLine(error.name, 100)}
        {error.value && `: ${visibleLine(error.value, 500)}`}
      </strong>
      {error.hint && <p className="hint">{visible(error.hint)}</p>}
      {error.traceback && (
        <details open={!error.hint}>
          <summary>Traceback</summary>
          <OutputView output={trace} revision={0} />
        </details>
      )}
    </div>
  );
}

type InputGiven = { sandboxId: string; executionId: string; request: InputRequest; answered: () => void };

function InputField({ sandboxId, executionId, request, answered }: InputGiven) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const answer = async (given: string | null) => {
    try {
      await send("POST", `/v1/sandboxes/${segment(sandboxId)}/executions/${segment(executionId)}/input`, {
        request_id: request.request_id,
        text: given,
      });
      setText("");
      setProblem(null);
      answered();
    } catch (error) {
      setProblem(error);
    }
  };

  return (
    <form
      className="input-request"
      onSubmit={(event) => {
        event.preventDefault();
        answer(text);
      }}
    >
      <label htmlFor={`input-${executionId}`}>
        <span className="chip">the code asks</span> {visibleLine(request.prompt) || "for a line of input"}
      </label>
      <div className="row">
        <input
          id={`input-${executionId}`}
          type={request.is_password ? "password" : "text"}
          autoComplete="off"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <button type="submit" className="primary">
          Answer
        </button>
        <button type="button" className="subtle" onClick={() => answer(null)}>
          No input
        </button>
      </div>
      {problem !== null && <ProblemBox error={problem} />}
    </form>
  );
}

function Notes({ cell, execution }: { cell: Cell; execution: Execution | null }) {
  const notes: string[] = [];
  if (cell.outputs_dropped) notes.push("Its outputs are no longer kept: the record is bounded.");
  const cut = execution ? execution.truncated.stdout_bytes + execution.truncated.stderr_bytes : 0;
  if (cut > 0) notes.push(`${bytes(cut)} of output were cut off at the sandbox's limit.`);
  if (execution && execution.truncated.results > 0)
    notes.push(`${execution.truncated.results} results were dropped.`);
  const changes = execution?.changes;

  return (
    <>
      {notes.map((note) => (
        <p key={note} className="note">
          {note}
        </p>
      ))}
      {changes && (changes.variables.length > 0 || changes.files.length > 0) && (
        <details className="changes">
          <summary>What it changed</summary>
          <ul>
            {changes.variables.map((each) => (
              <li key={`v ${each.name}`}>
                <span className={`chip ${each.kind}`}>{visibleLine(each.kind, 20)}</span>{" "}
                <code>{visibleLine(each.name, 60)}</code>{" "}
                <span className="quiet">
                  {visibleLine(each.type, 60)} {visibleLine(each.summary, 120)}
                </span>
              </li>
            ))}
            {changes.files.map((each) => (
              <li key={`f ${each.path}`}>
                <span className={`chip ${each.kind}`}>{visibleLine(each.kind, 20)}</span>{" "}
                <code>{visibleLine(each.path, 200)}</code>
              </li>
            ))}
          </ul>
          {changes.more_files > 0 && <p className="quiet">{changes.more_files} files more</p>}
        </details>
      )}
    </>
  );
}

function outcomeClass(cell: Cell): string {
  if (cell.state === "running") return "running";
  return cell.outcome === "ok" ? "ok" : "failed";
}

function count(number: number, word: string): string {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}
