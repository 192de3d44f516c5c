/** Two moments of a sandbox side by side: which variables and files differ, and each of them as it was and as it is. */

import { useQuery } from "@tanstack/react-query";
import { useMemo, useRef, useState } from "react";
import { useSearchParams } from "wouter";
import { ask, get, segment } from "../api/client";
import { asProblem } from "../api/problem";
import type * as api from "../api/schema";
import type { Checkpoint, Page } from "../api/types";
import { VariableDetail } from "../panels/Variables";
import { BackToSandbox } from "../parts/BackToSandbox";
import { folded, linesOf, textOf } from "../parts/difference";
import { bytes, clock, visible, visibleLine } from "../parts/format";
import { useKeys } from "../parts/hooks";
import { Empty, ProblemBox } from "../parts/Problems";

type Moment = api.Moment;
type Seen = api.Variable;
type FileDifference = api.ChangedFile;
type Comparison = api.Comparison;
const NOW = "now";
const KEPT_BYTES = 1024 * 1024;

export default function Compare({ id }: { id: string }) {
  const [search, setSearch] = useSearchParams();
  const path = `/v1/sandboxes/${segment(id)}`;
  const checkpoints = useQuery({
    queryKey: ["timeline", id, "checkpoints"],
    queryFn: ({ signal }) => get<Page<Checkpoint>>(`${path}/checkpoints`, signal),
    retry: false,
  });
  const items = checkpoints.data?.items ?? [];
  const before = search.get("a") ?? items.at(-1)?.id ?? "";
  const after = search.get("b") ?? NOW;
  const set = (name: string, value: string) =>
    setSearch({ a: before, b: after, [name]: value }, { replace: true });
  const compared = useQuery({
    queryKey: ["compare", id, before, after],
    queryFn: ({ signal }) =>
      get<Comparison>(`${path}/compare?before=${segment(before)}&after=${segment(after)}`, signal),
    enabled: before !== "",
    retry: false,
    staleTime: 0,
  });

  return (
    <div className="page scrolling">
      <BackToSandbox id={id} />
      <h1>Compare two moments</h1>
      {checkpoints.error && <ProblemBox error={checkpoints.error} retry={() => checkpoints.refetch()} />}
      {checkpoints.data && items.length === 0 && (
        <Empty title="There is no checkpoint to compare with.">
          <p>Make one on the page of the sandbox: it is a moment that can be compared with later ones.</p>
        </Empty>
      )}
      {items.length > 0 && (
        <div className="row">
          <Choice label="Before" value={before} items={items} set={(value) => set("a", value)} />
          <Choice label="After" value={after} items={items} set={(value) => set("b", value)} withNow />
          <button type="button" disabled={compared.isFetching} onClick={() => compared.refetch()}>
            Look again
          </button>
        </div>
      )}
      {compared.error && <ProblemBox error={compared.error} retry={() => compared.refetch()} />}
      {compared.isLoading && <div className="skeleton" />}
      {compared.data && <Found sandboxId={id} compared={compared.data} />}
    </div>
  );
}

type ChoiceGiven = {
  label: string;
  value: string;
  items: Checkpoint[];
  set: (value: string) => void;
  withNow?: boolean;
};

function Choice({ label, value, items, set, withNow = false }: ChoiceGiven) {
  const isKnown = (withNow && value === NOW) || items.some((each) => each.id === value);
  return (
    <label>
      {label}{" "}
      <select value={value} onChange={(event) => set(event.target.value)}>
        {!isKnown && <option value={value}>{visibleLine(value, 40)}</option>}
        {items.map((each) => (
          <option key={each.id} value={each.id}>
            {visibleLine(each.name || each.id, 40)}, {clock(each.created_at)}
          </option>
        ))}
        {withNow && <option value={NOW}>now</option>}
      </select>
    </label>
  );
}

function Found({ sandboxId, compared }: { sandboxId: string; compared: Comparison }) {
  const why: Record<string, string> = {
    running: "Code runs, and looking does not wait for it: only the files are compared.",
    paused: "The sandbox is paused, and looking does not wake it: nothing can be compared now.",
    none: "The context has no variables that can be looked at: only the files are compared.",
  };
  const filter = useRef<HTMLInputElement>(null);
  const [words, setWords] = useState("");
  const [kind, setKind] = useState("");
  useKeys(useMemo(() => ({ "/": () => filter.current?.focus() }), []));
  const kinds = [...new Set([...compared.variables, ...compared.files].map((each) => each.kind))].sort();
  const fits: Fits = (name, what) =>
    (kind === "" || kind === what) && name.toLowerCase().includes(words.trim().toLowerCase());
  return (
    <>
      {compared.state !== "current" && (
        <p className="stale" role="status">
          {why[compared.state] ?? visibleLine(compared.state)}
        </p>
      )}
      {!compared.are_marked && (
        <p className="note">
          The context was started afresh in between: variables are compared by type, size and summary alone.
        </p>
      )}
      <div className="row">
        <input
          ref={filter}
          type="search"
          placeholder="Filter by name  /"
          aria-label="Filter by name"
          value={words}
          onChange={(event) => setWords(event.target.value)}
        />
        <label>
          What{" "}
          <select value={kind} onChange={(event) => setKind(event.target.value)}>
            <option value="">all</option>
            {kinds.map((each) => (
              <option key={each} value={each}>
                {visibleLine(each, 20)}
              </option>
            ))}
          </select>
        </label>
      </div>
      {compared.state === "current" && <Variables sandboxId={sandboxId} compared={compared} fits={fits} />}
      {compared.state !== "paused" && <Files sandboxId={sandboxId} compared={compared} fits={fits} />}
    </>
  );
}

type Fits = (name: string, kind: string) => boolean;
type FoundGiven = { sandboxId: string; compared: Comparison; fits: Fits };

function Variables({ sandboxId, compared, fits }: FoundGiven) {
  const [chosen, setChosen] = useState<string | null>(null);
  const { variables, before, after, context_id: contextId } = compared;
  const path = `/v1/sandboxes/${segment(sandboxId)}/contexts/${segment(contextId)}/variables`;
  const listed = variables.filter((each) => fits(each.name, each.kind));
  const detail = listed.find((each) => each.name === chosen);
  const at = (moment: Moment) => (moment.id === NOW ? "" : `?at=${segment(moment.id)}`);

  return (
    <section className="card" aria-label="Variables">
      <h2>Variables</h2>
      <p className="quiet">
        {variables.length} differ, {compared.same_variables} are the same
        {compared.more_variables > 0 && `; ${compared.more_variables} more were not compared`}.
        {left(listed.length, variables.length)}
      </p>
      {listed.length > 0 && (
        <table className="plain variables">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">What</th>
              <th scope="col">{nameOf(before)}</th>
              <th scope="col">{nameOf(after)}</th>
            </tr>
          </thead>
          <tbody>
            {listed.map((each) => (
              <tr key={each.name} className={chosen === each.name ? "chosen" : undefined}>
                <td>
                  <button
                    type="button"
                    className="link"
                    aria-expanded={chosen === each.name}
                    onClick={() => setChosen(chosen === each.name ? null : each.name)}
                  >
                    <code>{visibleLine(each.name, 60)}</code>
                  </button>
                </td>
                <td>{visibleLine(each.kind)}</td>
                <td>{shown(each.before)}</td>
                <td>{shown(each.after)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {detail && (
        <div className="sides">
          {[before, after].map((moment, index) => (
            <section key={moment.id} aria-label={nameOf(moment)}>
              <h3>{nameOf(moment)}</h3>
              {(index === 0 ? detail.before : detail.after) ? (
                <VariableDetail
                  path={`${path}/${segment(detail.name)}${at(moment)}`}
                  queryKey={["variables", sandboxId, contextId, "one", detail.name, moment.id]}
                />
              ) : (
                <p className="quiet">It was not there.</p>
              )}
            </section>
          ))}
        </div>
      )}
    </section>
  );
}

function Files({ sandboxId, compared, fits }: FoundGiven) {
  const [chosen, setChosen] = useState<string | null>(null);
  const { files } = compared;
  const listed = files.filter((each) => fits(each.path, each.kind));
  const one = listed.find((each) => each.path === chosen);

  return (
    <section className="card" aria-label="Files">
      <h2>Files</h2>
      <p className="quiet">
        {files.length} differ{compared.more_files > 0 && `; ${compared.more_files} more are left out`}.
        {left(listed.length, files.length)}
      </p>
      {listed.length > 0 && (
        <table className="plain">
          <thead>
            <tr>
              <th scope="col">Path</th>
              <th scope="col">What</th>
              <th scope="col">Size</th>
            </tr>
          </thead>
          <tbody>
            {listed.map((each) => (
              <tr key={each.path} className={chosen === each.path ? "chosen" : undefined}>
                <td>
                  <button
                    type="button"
                    className="link"
                    aria-expanded={chosen === each.path}
                    onClick={() => setChosen(chosen === each.path ? null : each.path)}
                  >
                    <code>{visibleLine(each.path, 120)}</code>
                  </button>
                </td>
                <td>{visibleLine(each.kind)}</td>
                <td className="number">{bytes(each.size_bytes)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {one && <FileDetail key={one.path} sandboxId={sandboxId} compared={compared} file={one} />}
    </section>
  );
}

/** How many fit the filter, where not all do. */
function left(fitting: number, all: number): string {
  return fitting === all ? "" : ` ${fitting} of them fit the filter.`;
}

type FileGiven = { sandboxId: string; compared: Comparison; file: FileDifference };

function FileDetail({ sandboxId, compared, file }: FileGiven) {
  const { before, after } = compared;
  const texts = useQuery({
    queryKey: ["compare", sandboxId, "file", before.id, after.id, file.path],
    queryFn: async ({ signal }) => ({
      before: file.kind === "created" ? "" : await contentOf(sandboxId, before, file.path, signal),
      after: file.kind === "deleted" ? "" : await contentOf(sandboxId, after, file.path, signal),
    }),
    retry: false,
    staleTime: 0,
  });
  if (texts.error) return <ProblemBox error={texts.error} retry={() => texts.refetch()} />;
  if (!texts.data) return <div className="skeleton" />;
  if (texts.data.before === null || texts.data.after === null)
    return <p className="quiet">It is not a text, and is compared by its size and its time alone.</p>;

  const lines = linesOf(texts.data.before, texts.data.after);
  return (
    <section className="detail" aria-label={`File ${file.path}`}>
      <h3>
        <code>{visibleLine(file.path, 200)}</code>
      </h3>
      {file.size_bytes > KEPT_BYTES && <p className="quiet">The first 1 MiB is compared.</p>}
      {lines ? (
        <pre className="plain-text difference">
          {folded(lines).map((line, index) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: lines are numbered
            <span key={index} className={line ? `line-${line.kind}` : "quiet"}>
              {line ? `${SIGNS[line.kind]} ${visible(line.text)}\n` : "…\n"}
            </span>
          ))}
        </pre>
      ) : (
        <div className="sides">
          <pre className="plain-text">{visible(texts.data.before)}</pre>
          <pre className="plain-text">{visible(texts.data.after)}</pre>
        </div>
      )}
    </section>
  );
}

const SIGNS = { same: " ", before: "-", after: "+" };

/** The beginning of a file at a moment; null where it is no text. */
async function contentOf(sandboxId: string, moment: Moment, path: string, signal: AbortSignal) {
  const base = `/v1/sandboxes/${segment(sandboxId)}`;
  const place =
    moment.id === NOW
      ? `${base}/files/content?path=${segment(path)}`
      : `${base}/checkpoints/${segment(moment.id)}/file?path=${segment(path)}`;
  try {
    const answer = await ask(place, { signal, accept: "application/octet-stream", most: KEPT_BYTES });
    const content = (await answer.arrayBuffer()).slice(0, KEPT_BYTES);
    return textOf(content, content.byteLength === KEPT_BYTES);
  } catch (error) {
    // An empty file has no first byte.
    if (asProblem(error).status === 416) return "";
    throw error;
  }
}

function nameOf(moment: Moment): string {
  return moment.id === NOW ? "now" : visibleLine(moment.name || moment.id, 40);
}

function shown(seen: Seen | null) {
  if (!seen) return <span className="quiet">–</span>;
  return (
    <>
      {visibleLine(seen.type, 40)} <span className="quiet">{bytes(seen.size_bytes)}</span>
      <br />
      <span className="summary">{visibleLine(seen.summary, 80)}</span>
    </>
  );
}
