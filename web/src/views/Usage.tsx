/** What each key has used, by hour or by day. */

import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { useSearchParams } from "wouter";
import { get, segment } from "../api/client";
import type * as api from "../api/schema";
import type { Page } from "../api/types";
import { bytes, seconds, visibleLine } from "../parts/format";
import { copy } from "../parts/hooks";
import { Empty, ProblemBox } from "../parts/Problems";
import { ChartView } from "../results/ChartView";
import { readChart } from "../results/chart";

type Used = api.UsageItem;
const RANGES: [string, string, number][] = [
  ["day", "24 hours", 1],
  ["week", "7 days", 7],
  ["month", "30 days", 30],
];
const DAY_MILLISECONDS = 86_400_000;

export default function Usage() {
  const [search, setSearch] = useSearchParams();
  const range =
    RANGES.find(([name]) => name === search.get("range")) ?? (RANGES[0] as [string, string, number]);
  const [name, , days] = range;
  const unit = days === 1 ? "hour" : "day";
  const usage = useQuery({
    queryKey: ["usage", name],
    queryFn: ({ signal }) => {
      const from = new Date(Date.now() - days * DAY_MILLISECONDS).toISOString();
      return get<Page<Used>>(`/v1/usage?by=${unit}&since=${segment(from)}`, signal);
    },
    refetchInterval: 30_000,
  });
  const items = usage.data?.items ?? [];
  const totals = useMemo(() => byKey(items), [items]);
  const chart = useMemo(() => readChart(overTime(items)), [items]);

  return (
    <div className="page scrolling">
      <div className="head">
        <h1>Usage</h1>
        <fieldset className="ways">
          <legend className="unseen">Range</legend>
          {RANGES.map(([value, label]) => (
            <button
              key={value}
              type="button"
              className="subtle"
              aria-pressed={value === name}
              onClick={() => setSearch({ range: value })}
            >
              {label}
            </button>
          ))}
        </fieldset>
        <span className="acts">
          <button type="button" onClick={() => copy(csv(items))}>
            Copy as CSV
          </button>
        </span>
      </div>
      {usage.error && <ProblemBox error={usage.error} retry={() => usage.refetch()} />}
      {usage.data && items.length === 0 && <Empty title="Nothing was used in this time." />}
      {items.length > 0 && chart && (
        <section className="card" aria-label="Executions over time">
          <ChartView chart={chart} />
        </section>
      )}
      {items.length > 0 && (
        <div className="scrolls" tabIndex={0} role="region" aria-label="By key">
          <table className="plain">
            <thead>
              <tr>
                {["Key", "Executions", "Errors", "Sandboxes", "CPU", "Wall", "In", "Out"].map((each) => (
                  <th key={each} scope="col">
                    {each}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {totals.map((each) => (
                <tr key={each.key_id}>
                  <td>{visibleLine(each.key_id, 40)}</td>
                  <td className="number">{each.executions.toLocaleString()}</td>
                  <td className="number">{each.errors.toLocaleString()}</td>
                  <td className="number">{each.sandboxes.toLocaleString()}</td>
                  <td className="number">{seconds(each.cpu_seconds)}</td>
                  <td className="number">{seconds(each.wall_seconds)}</td>
                  <td className="number">{bytes(each.bytes_in)}</td>
                  <td className="number">{bytes(each.bytes_out)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}

function byKey(items: Used[]): Used[] {
  const totals = new Map<string, Used>();
  for (const item of items) {
    const sum = totals.get(item.key_id);
    if (!sum) {
      totals.set(item.key_id, { ...item });
      continue;
    }
    for (const field of [
      "executions",
      "sandboxes",
      "cpu_seconds",
      "wall_seconds",
      "bytes_in",
      "bytes_out",
      "errors",
    ] as const)
      sum[field] += item[field];
  }
  return [...totals.values()].sort((one, other) => other.executions - one.executions);
}

function overTime(items: Used[]): unknown {
  const elements = items
    .toSorted((one, other) => one.start.localeCompare(other.start))
    .map((item) => ({ label: label(item.start), group: item.key_id, value: item.executions }));
  return { type: "bar", title: "Executions", elements };
}

function label(start: string): string {
  const at = new Date(start);
  return at.getUTCHours() === 0
    ? `${at.getUTCMonth() + 1}-${at.getUTCDate()}`
    : `${String(at.getUTCHours()).padStart(2, "0")}:00`;
}

function csv(items: Used[]): string {
  const fields = [
    "key_id",
    "start",
    "executions",
    "errors",
    "sandboxes",
    "cpu_seconds",
    "wall_seconds",
    "bytes_in",
    "bytes_out",
  ] as const;
  return `${[fields.join(","), ...items.map((item) => fields.map((field) => item[field]).join(","))].join("\n")}\n`;
}
