/** The rail over the transcript: cells, checkpoints, ways back and forks in the order in which they happened. */

import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { Link } from "wouter";
import { get, segment } from "../api/client";
import type { AuditEntry, Cell, Checkpoint, Page } from "../api/types";
import { clock, shortId, visibleLine } from "../parts/format";
import { useMayAct } from "../parts/rights";
import { GoHere } from "./GoHere";
import { type Mark, marksOf } from "./timeline";

/** Marks that exist at first: thousands would hold the page at each new one. */
const SHOWN_MARKS = 200;

type Given = {
  sandboxId: string;
  contextId: string;
  cells: Cell[];
  chosen: string | null;
  choose: (id: string | null) => void;
  isThere: boolean;
};

export function Timeline({ sandboxId, contextId, cells, chosen, choose, isThere }: Given) {
  const rail = useRef<HTMLOListElement>(null);
  const mayAct = useMayAct();
  const [shown, setShown] = useState(SHOWN_MARKS);
  const path = `/v1/sandboxes/${segment(sandboxId)}`;
  const log = useQuery({
    queryKey: ["timeline", sandboxId],
    queryFn: ({ signal }) => get<{ entries: AuditEntry[]; dropped: number }>(`${path}/audit`, signal),
    enabled: isThere,
    retry: false,
  });
  const checkpoints = useQuery({
    queryKey: ["timeline", sandboxId, "checkpoints"],
    queryFn: ({ signal }) => get<Page<Checkpoint>>(`${path}/checkpoints`, signal),
    // They are asked of the guest.
    enabled: isThere && mayAct,
    retry: false,
  });
  const marks = useMemo(
    () => marksOf(log.data?.entries ?? [], checkpoints.data?.items ?? [], cells, contextId),
    [log.data, checkpoints.data, cells, contextId],
  );

  // biome-ignore lint/correctness/useExhaustiveDependencies: a new mark moves the rail to its end
  useEffect(() => {
    if (rail.current) rail.current.scrollLeft = rail.current.scrollWidth;
  }, [marks.length]);

  if (marks.length === 0) return null;
  const hidden = Math.max(0, marks.length - shown);
  const byId = new Map(checkpoints.data?.items.map((each) => [each.id, each]));

  return (
    <section className="timeline" aria-label="Timeline">
      <ol ref={rail}>
        {(log.data?.dropped ?? 0) > 0 && hidden === 0 && (
          <li className="quiet">… {log.data?.dropped} earlier</li>
        )}
        {hidden > 0 && (
          <li className="mark">
            <button type="button" className="subtle" onClick={() => setShown(shown + SHOWN_MARKS)}>
              … {hidden.toLocaleString()} earlier
            </button>
          </li>
        )}
        {marks.slice(hidden).map((mark) => (
          <li
            key={mark.key}
            className={`mark mark-${mark.kind} ${"isUndone" in mark && mark.isUndone ? "undone" : ""}`}
          >
            <MarkView
              mark={mark}
              byId={byId}
              areKnown={checkpoints.data !== undefined}
              sandboxId={sandboxId}
              contextId={contextId}
              isChosen={mark.kind === "cell" && mark.id === chosen}
              choose={choose}
            />
          </li>
        ))}
        <li className="mark now">
          <span aria-hidden="true">●</span> now
        </li>
      </ol>
    </section>
  );
}

type MarkGiven = {
  mark: Mark;
  byId: Map<string, Checkpoint>;
  /** Whether it is known which checkpoints are kept: a key that watches may not ask. */
  areKnown: boolean;
  sandboxId: string;
  contextId: string;
  isChosen: boolean;
  choose: (id: string | null) => void;
};

function MarkView({ mark, byId, areKnown, sandboxId, contextId, isChosen, choose }: MarkGiven) {
  if (mark.kind === "cell") {
    const isOk = mark.outcome === "ok";
    const name = mark.number === null ? "an earlier cell" : `Cell ${mark.number}`;
    return (
      <button
        type="button"
        className={isOk ? "cell-mark" : "cell-mark failed"}
        aria-pressed={isChosen}
        aria-label={`${name}, ${isOk ? "ok" : visibleLine(mark.outcome, 30)}${mark.isUndone ? ", undone" : ""}`}
        title={`${name}, ${clock(mark.at)}`}
        onClick={() => choose(mark.id)}
      >
        {mark.number ?? "·"}
        {!isOk && <span aria-hidden="true">✗</span>}
      </button>
    );
  }
  if (mark.kind === "checkpoint") {
    const checkpoint = byId.get(mark.id);
    const name = visibleLine(mark.name, 30);
    if (!checkpoint) {
      return (
        <span className="quiet" title={areKnown ? "This checkpoint is no longer kept." : undefined}>
          ◇ {name}
          {areKnown && " (dropped)"}
        </span>
      );
    }
    return (
      <GoHere
        sandboxId={sandboxId}
        contextId={contextId}
        checkpoint={checkpoint}
        trigger={
          <button type="button" className="checkpoint-mark" title={`Checkpoint, ${clock(mark.at)}: go here`}>
            <span aria-hidden="true">◆</span> {name}
          </button>
        }
      />
    );
  }
  if (mark.kind === "rollback") {
    return (
      <span className="rollback-mark" title={`Went back, ${clock(mark.at)}`}>
        <span aria-hidden="true">↩</span> {visibleLine(mark.name, 30)}
      </span>
    );
  }
  return (
    <span className="fork-mark" title={clock(mark.at)}>
      <span aria-hidden="true">⎇</span>{" "}
      {mark.children.slice(0, 4).map((child) => (
        <Link key={child} href={`/sandboxes/${child}`}>
          fork <code>{shortId(child)}</code>
        </Link>
      ))}
      {mark.children.length > 4 && ` and ${mark.children.length - 4} more`}
    </span>
  );
}
