/** The family of a sandbox: where it was forked from, what was forked from it, and how each of them ended. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { get, segment } from "../api/client";
import type * as api from "../api/schema";
import { shortId, visibleLine } from "../parts/format";
import { ProblemBox } from "../parts/Problems";

type Relative = api.Relative;
type Placed = { relative: Relative; depth: number };
const MOST_DEPTH = 8;

/** Asked for when it is opened: most sandboxes have none. */
export function Family({ sandboxId }: { sandboxId: string }) {
  const [isOpen, setOpen] = useState(false);
  const family = useQuery({
    queryKey: ["timeline", sandboxId, "family"],
    queryFn: ({ signal }) => get<api.Family>(`/v1/sandboxes/${segment(sandboxId)}/family`, signal),
    enabled: isOpen,
    retry: false,
  });
  const placed = inOrder(family.data?.items ?? []);

  return (
    <details className="family" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Parents and forks</summary>
      {family.error && <ProblemBox error={family.error} retry={() => family.refetch()} />}
      <ul aria-label="Family">
        {placed.map(({ relative, depth }) => (
          <li key={relative.id} style={{ paddingInlineStart: `${Math.min(depth, MOST_DEPTH) * 16}px` }}>
            {relative.id === sandboxId ? (
              <strong>
                <code>{shortId(relative.id)}</code> (this one)
              </strong>
            ) : (
              <Link href={`/sandboxes/${segment(relative.id)}`} title={relative.id}>
                <code>{shortId(relative.id)}</code>
              </Link>
            )}{" "}
            <span className="quiet">
              {relative.state}
              {relative.reason && `: ${visibleLine(relative.reason, 80)}`} · {relative.cells} cells
              {relative.last_outcome && ` · last ${visibleLine(relative.last_outcome, 40)}`}
            </span>
          </li>
        ))}
      </ul>
    </details>
  );
}

/** Each after its parent; one whose parent is not known begins a tree. */
export function inOrder(items: Relative[]): Placed[] {
  const known = new Set(items.map(({ id }) => id));
  const placed: Placed[] = [];
  const below = (parent: string | null, depth: number) => {
    for (const relative of items) {
      const of = relative.parent_id !== null && known.has(relative.parent_id) ? relative.parent_id : null;
      if (of !== parent || placed.length >= items.length) continue;
      placed.push({ relative, depth });
      below(relative.id, depth + 1);
    }
  };
  below(null, 0);
  return placed;
}
