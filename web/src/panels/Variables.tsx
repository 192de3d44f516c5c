/** The variables of a context: names, types, sizes, a summary each. Looking runs no code of the objects. */

import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useState } from "react";
import { get, segment } from "../api/client";
import type * as api from "../api/schema";
import { bytes, clock, visible, visibleLine } from "../parts/format";
import { ProblemBox } from "../parts/Problems";

type Variable = api.Variable;
type Variables = api.VariablePage;
type Detail = Variable & {
  text?: string | null;
  shape?: number[] | null;
  columns?: [string, string][] | null;
  rows?: string[][] | null;
  items?: [string, string, string][] | null;
};
type Given = {
  sandboxId: string;
  contextId: string;
  numberOf: (executionId: string) => number | null;
  choose: (id: string) => void;
};

export function VariablesPanel({ sandboxId, contextId, numberOf, choose }: Given) {
  const [words, setWords] = useState("");
  const [chosen, setChosen] = useState<string | null>(null);
  const wanted = useDeferredValue(words.trim());
  const path = `/v1/sandboxes/${segment(sandboxId)}/contexts/${segment(contextId)}/variables`;
  const list = useQuery({
    queryKey: ["variables", sandboxId, contextId, wanted],
    queryFn: ({ signal }) =>
      get<Variables>(`${path}?limit=200${wanted ? `&q=${segment(wanted)}` : ""}`, signal),
    placeholderData: (earlier) => earlier,
  });

  return (
    <div className="panel-body">
      <input
        type="search"
        aria-label="Filter variables"
        placeholder="Filter"
        value={words}
        onChange={(event) => setWords(event.target.value)}
      />
      {list.error && <ProblemBox error={list.error} retry={() => list.refetch()} />}
      {list.data && <Standing list={list.data} />}
      {list.data && list.data.items.length === 0 && list.data.state === "current" && (
        <p className="quiet">{wanted ? "No variable fits." : "There are no variables yet."}</p>
      )}
      {list.data && list.data.items.length > 0 && (
        <table className="plain variables">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Type</th>
              <th scope="col">Size</th>
              <th scope="col">Summary</th>
              <th scope="col">Since</th>
            </tr>
          </thead>
          <tbody>
            {list.data.items.map((each) => {
              const number = each.since ? numberOf(each.since) : null;
              return (
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
                  <td>{visibleLine(each.type, 40)}</td>
                  <td className="number">{bytes(each.size_bytes)}</td>
                  <td className="summary" title={visibleLine(each.summary, 400)}>
                    {visibleLine(each.summary, 80)}
                  </td>
                  <td>
                    {number !== null && each.since && (
                      <button type="button" className="link" onClick={() => choose(each.since ?? "")}>
                        [{number}]
                      </button>
                    )}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      )}
      {list.data?.next_cursor && (
        <p className="quiet">{list.data.count} in all; the filter finds the others.</p>
      )}
      {chosen && (
        <VariableDetail
          path={`${path}/${segment(chosen)}`}
          queryKey={["variables", sandboxId, contextId, "one", chosen]}
        />
      )}
    </div>
  );
}

function Standing({ list }: { list: Variables }) {
  if (list.state === "current") return null;
  const when = list.as_of ? `as of ${clock(list.as_of)}` : "they were never looked at";
  const why: Record<string, string> = {
    running: `Code runs, and looking does not wait for it: ${when}.`,
    paused: `The sandbox is paused, and looking does not wake it: ${when}.`,
    none: "This context has not begun yet, or keeps no variables that can be looked at.",
  };
  return <p className="stale">{why[list.state] ?? visibleLine(list.state)}</p>;
}

export function VariableDetail({ path, queryKey }: { path: string; queryKey: string[] }) {
  const detail = useQuery({
    queryKey,
    queryFn: ({ signal }) => get<{ items: Detail[] }>(path, signal),
    retry: false,
  });
  if (detail.error) return <ProblemBox error={detail.error} />;
  const found = detail.data?.items[0];
  if (!found) return detail.data ? <p className="quiet">It is not known now.</p> : null;
  const { name, type, shape, columns, rows, items, summary, text } = found;

  return (
    <section className="detail" aria-label={`Variable ${name}`}>
      <h2>
        <code>{visibleLine(name, 80)}</code> <span className="quiet">{visibleLine(type, 80)}</span>
      </h2>
      {shape && <p className="quiet">shape {shape.join(" × ")}</p>}
      {columns && rows ? (
        <div className="scrolls">
          <table className="plain">
            <thead>
              <tr>
                {columns.map(([label = "", dtype = ""]) => (
                  <th scope="col" key={label}>
                    {visibleLine(label, 40)}
                    <br />
                    <span className="quiet">{visibleLine(dtype, 30)}</span>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row, index) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: rows are numbered
                <tr key={index}>
                  {row.map((value, column) => (
                    // biome-ignore lint/suspicious/noArrayIndexKey: columns are numbered
                    <td key={column}>{visibleLine(String(value), 80)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        !items && <pre className="plain-text">{visible(text ?? summary)}</pre>
      )}
      {items && (
        <table className="plain">
          <tbody>
            {items.map(([key = "", kind = "", about = ""]) => (
              <tr key={key}>
                <th scope="row">{visibleLine(key, 60)}</th>
                <td>{visibleLine(kind, 40)}</td>
                <td>{visibleLine(about, 160)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
