/** The cells of a context, the newest at the end; only those in view exist. Follows the end until the viewer scrolls up. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useEffect, useRef, useState } from "react";
import { follows } from "../parts/follow";
import { Empty, ProblemBox } from "../parts/Problems";
import { CellView } from "./CellView";
import type { Cells } from "./useCells";

const FEED = { role: "feed", "aria-label": "Cells" };

type Given = {
  sandboxId: string;
  cells: Cells;
  chosen: string | null;
  choose: (id: string | null) => void;
  reuse: ((code: string) => void) | null;
  /** Counts what was run from here: its cell is what the viewer waits for. */
  runs: number;
};

export function Transcript({ sandboxId, cells: given, chosen, choose, reuse, runs }: Given) {
  const { cells, page, error, feed, isLive, hasOlder, loadOlder, refresh } = given;
  const scroller = useRef<HTMLDivElement>(null);
  const lastTop = useRef(0);
  const [isFollowing, setFollowing] = useState(true);
  const [seen, setSeen] = useState(0);
  const end = page?.end_position ?? 0;

  const rows = useVirtualizer({
    count: cells.length,
    getScrollElement: () => scroller.current,
    estimateSize: (index) =>
      estimated(
        cells[index]?.code ?? "",
        cells[index]?.output_characters ?? 0,
        cells[index]?.results.length ?? 0,
      ),
    getItemKey: (index) => cells[index]?.id ?? index,
    // The first look is at the newest: what would be rendered and asked for at the top is not seen.
    initialOffset: () => (chosen ? 0 : Number.MAX_SAFE_INTEGER),
    overscan: 4,
    gap: 10,
  });

  const height = rows.getTotalSize();
  // biome-ignore lint/correctness/useExhaustiveDependencies: what grows is what moves the view
  useEffect(() => {
    const pane = scroller.current;
    if (!pane || !isFollowing) return;
    pane.scrollTop = pane.scrollHeight;
    lastTop.current = pane.scrollTop;
  }, [isFollowing, height, end]);
  useEffect(() => {
    if (isFollowing) setSeen(end);
  }, [isFollowing, end]);

  useEffect(() => {
    if (runs > 0) setFollowing(true);
  }, [runs]);

  // A cell that was chosen elsewhere is brought into view.
  const shown = useRef<string | null>(null);
  useEffect(() => {
    if (!chosen || shown.current === chosen) return;
    const index = cells.findIndex((cell) => cell.id === chosen);
    if (index === -1) return;
    shown.current = chosen;
    setFollowing(false);
    rows.scrollToIndex(index, { align: "start" });
  }, [chosen, cells, rows]);

  const scrolled = useCallback(() => {
    const pane = scroller.current;
    if (!pane) return;
    const before = lastTop.current;
    const { scrollTop, clientHeight, scrollHeight } = pane;
    lastTop.current = scrollTop;
    setFollowing((was) => follows(was, before, { scrollTop, clientHeight, scrollHeight }, 40));
  }, []);

  if (!page && error) return <ProblemBox error={error} retry={refresh} title="The cells could not be read" />;
  if (!page) return <div className="skeleton" />;

  return (
    <div className="transcript-place">
      <div className="transcript" ref={scroller} onScroll={scrolled} tabIndex={0}>
        {(page.dropped_cells > 0 || page.dropped_outputs > 0) && (
          <p className="note">
            The record is bounded: {page.dropped_cells} older cells are missing, {page.dropped_outputs} have
            lost their outputs.
          </p>
        )}
        {hasOlder && (
          <button type="button" onClick={() => loadOlder()}>
            Show older cells
          </button>
        )}
        {cells.length === 0 && (
          <Empty title="Nothing ran here yet.">
            <p>Write code below, or let a program run some: its cells appear here while they run.</p>
          </Empty>
        )}
        <div style={{ height, position: "relative" }} {...(cells.length > 0 ? FEED : {})}>
          {rows.getVirtualItems().map((row) => {
            const cell = cells[row.index];
            return (
              cell && (
                <div
                  key={row.key}
                  ref={rows.measureElement}
                  data-index={row.index}
                  className="placed"
                  style={{ transform: `translateY(${row.start}px)` }}
                >
                  <CellView
                    sandboxId={sandboxId}
                    cell={cell}
                    number={cell.position + 1}
                    feed={feed}
                    isLive={isLive}
                    isChosen={chosen === cell.id}
                    choose={() => {
                      shown.current = cell.id;
                      choose(chosen === cell.id ? null : cell.id);
                    }}
                    reuse={reuse}
                  />
                </div>
              )
            );
          })}
        </div>
      </div>
      {!isFollowing && (
        <button type="button" className="follow" onClick={() => setFollowing(true)}>
          {end > seen ? `${end - seen} new ↓` : "To the end ↓"}
        </button>
      )}
      <p className="unseen" role="status">
        {spoken(cells.at(-1)?.outcome ?? null, (cells.at(-1)?.position ?? 0) + 1)}
      </p>
    </div>
  );
}

function estimated(code: string, characters: number, results: number): number {
  const lines = Math.min(36, code.split("\n").length);
  return 60 + lines * 20 + Math.min(380, Math.ceil(characters / 80) * 19) + Math.min(3, results) * 220;
}

function spoken(outcome: string | null, number: number): string {
  if (!outcome) return "";
  return outcome === "ok" ? `Cell ${number} finished.` : `Cell ${number} finished with an error.`;
}
