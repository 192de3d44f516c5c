/** A data frame as a grid: only the rows in view exist; a click on a column sorts. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef, useState } from "react";
import { visibleLine } from "../parts/format";
import { copy } from "../parts/hooks";

const ROW_HEIGHT = 26;
const MOST_COLUMNS = 100;

export type Frame = { names: string[]; columns: unknown[][]; rows: number; hidden: number };

export function readFrame(value: unknown): Frame | null {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return null;
  const all = Object.entries(value).filter((entry): entry is [string, unknown[]] => Array.isArray(entry[1]));
  if (all.length === 0) return null;
  const shown = all.slice(0, MOST_COLUMNS);
  return {
    names: shown.map(([name]) => name),
    columns: shown.map(([, column]) => column),
    rows: shown.reduce((most, [, column]) => Math.max(most, column.length), 0),
    hidden: all.length - shown.length,
  };
}

type Order = { column: number; isDown: boolean } | null;

export function DataGrid({
  frame,
  metadata,
}: {
  frame: Frame;
  metadata: { rows?: number; truncated?: boolean };
}) {
  const scroller = useRef<HTMLDivElement>(null);
  const [order, setOrder] = useState<Order>(null);
  const rows = useMemo(() => ordered(frame, order), [frame, order]);
  const view = useVirtualizer({
    count: frame.rows,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: 12,
  });
  const isNumber = useMemo(
    () => frame.columns.map((column) => column.some((value) => typeof value === "number")),
    [frame],
  );
  const widths = useMemo(
    () => frame.columns.map((column, index) => widthOf(frame.names[index] ?? "", column)),
    [frame],
  );
  const template = `56px ${widths.map((width) => `minmax(${width}ch, 1fr)`).join(" ")}`;
  const sort = (column: number) =>
    setOrder(
      order?.column !== column ? { column, isDown: false } : order.isDown ? null : { column, isDown: true },
    );

  return (
    <div className="grid">
      <div
        className="grid-pane"
        ref={scroller}
        role="table"
        aria-rowcount={frame.rows + 1}
        aria-label="Data"
        tabIndex={0}
      >
        <div role="rowgroup" className="grid-head">
          <div role="row" className="grid-row" aria-rowindex={1} style={{ gridTemplateColumns: template }}>
            <div role="columnheader">
              <span className="unseen">Row</span>
            </div>
            {frame.names.map((name, column) => (
              <div
                role="columnheader"
                key={name}
                className={isNumber[column] ? "number" : undefined}
                aria-sort={order?.column === column ? (order.isDown ? "descending" : "ascending") : "none"}
              >
                <button type="button" className="subtle" onClick={() => sort(column)}>
                  {visibleLine(name, 60)}
                  {order?.column === column && <span aria-hidden="true">{order.isDown ? " ↓" : " ↑"}</span>}
                </button>
              </div>
            ))}
          </div>
        </div>
        <div role="rowgroup" style={{ height: view.getTotalSize(), position: "relative" }}>
          {view.getVirtualItems().map((item) => {
            const row = rows[item.index] ?? item.index;
            return (
              <div
                role="row"
                key={item.index}
                className="grid-row placed"
                aria-rowindex={item.index + 2}
                style={{
                  gridTemplateColumns: template,
                  transform: `translateY(${item.start}px)`,
                  height: ROW_HEIGHT,
                }}
              >
                <div role="rowheader" className="quiet">
                  {row}
                </div>
                {frame.columns.map((column, index) => (
                  <div
                    role="cell"
                    key={frame.names[index]}
                    className={isNumber[index] ? "number" : undefined}
                  >
                    {value(column[row])}
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
      <div className="row small">
        <span className="quiet">
          {frame.rows.toLocaleString()}
          {metadata.truncated && metadata.rows !== undefined ? ` of ${metadata.rows.toLocaleString()}` : ""}{" "}
          rows × {(frame.names.length + frame.hidden).toLocaleString()} columns
          {frame.hidden > 0 && `, ${frame.hidden.toLocaleString()} of them not shown`}
        </span>
        <button type="button" className="subtle" onClick={() => copy(csv(frame, rows))}>
          Copy as CSV
        </button>
      </div>
    </div>
  );
}

function value(given: unknown) {
  if (given === null || given === undefined) return <span className="quiet">null</span>;
  return visibleLine(typeof given === "string" ? given : JSON.stringify(given), 200);
}

function widthOf(name: string, column: unknown[]): number {
  const longest = column
    .slice(0, 50)
    .reduce<number>((most, each) => Math.max(most, String(each ?? "null").length), name.length);
  return Math.min(40, Math.max(6, longest + 3));
}

export function ordered(frame: Frame, order: Order): number[] {
  const rows = Array.from({ length: frame.rows }, (_, index) => index);
  const column = order ? frame.columns[order.column] : null;
  if (!order || !column) return rows;
  const sign = order.isDown ? -1 : 1;
  return rows.sort((one, other) => {
    const [a, b] = [column[one] ?? null, column[other] ?? null];
    // What is missing stands last, either way.
    if (a === null || b === null) return a === b ? one - other : a === null ? 1 : -1;
    if (typeof a === "number" && typeof b === "number") return sign * (a - b) || one - other;
    return sign * String(a).localeCompare(String(b), "en") || one - other;
  });
}

export function csv(frame: Frame, rows: number[]): string {
  const quoted = (given: unknown) => {
    const text =
      given === null || given === undefined ? "" : typeof given === "string" ? given : JSON.stringify(given);
    // A spreadsheet would take it for a formula.
    const safe = typeof given === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const lines = [
    frame.names.map(quoted).join(","),
    ...rows.map((row) => frame.columns.map((column) => quoted(column[row])).join(",")),
  ];
  return `${lines.join("\n")}\n`;
}
