/** What happened in a sandbox, in order, as marks on a rail: read from its audit record and its checkpoints. */

import type { AuditEntry, Cell, Checkpoint } from "../api/types";

export type Mark =
  | {
      kind: "cell";
      key: string;
      id: string;
      number: number | null;
      outcome: string;
      isUndone: boolean;
      at: string;
    }
  | {
      kind: "checkpoint";
      key: string;
      id: string;
      name: string;
      isDropped: boolean;
      isUndone: boolean;
      at: string;
    }
  | { kind: "rollback"; key: string; id: string; name: string; at: string }
  | { kind: "fork"; key: string; children: string[]; isUndone: boolean; at: string };

export function marksOf(
  entries: AuditEntry[],
  checkpoints: Checkpoint[],
  cells: Cell[],
  contextId: string,
): Mark[] {
  const marks: Mark[] = [];
  const known = new Map(checkpoints.map((each) => [each.id, each]));
  const numbers = new Map(cells.map((cell) => [cell.id, cell.position + 1]));
  const undone = new Set(cells.filter((cell) => cell.is_undone).map((cell) => cell.id));

  for (const { kind, fields, sequence, at } of entries) {
    const key = String(sequence);
    if (kind === "executed") {
      if (fields.context !== contextId) continue;
      const id = String(fields.execution ?? "");
      marks.push({
        kind: "cell",
        key,
        id,
        number: numbers.get(id) ?? null,
        outcome: String(fields.outcome ?? ""),
        isUndone: undone.has(id),
        at,
      });
    } else if (kind === "checkpoint") {
      const id = String(fields.checkpoint ?? "");
      const checkpoint = known.get(id);
      if (checkpoint && checkpoint.context_id !== contextId) continue;
      const name = checkpoint?.name || id;
      if (fields.verb === "take_checkpoint")
        marks.push({ kind: "checkpoint", key, id, name, isDropped: !checkpoint, isUndone: false, at });
      else if (fields.verb === "roll_back") {
        undo(marks, id);
        marks.push({ kind: "rollback", key, id, name, at });
      }
    } else if (kind === "forked") {
      const children = Array.isArray(fields.children)
        ? fields.children.filter((each): each is string => typeof each === "string")
        : [];
      marks.push({ kind: "fork", key, children, isUndone: false, at });
    }
  }
  return marks;
}

/** What came after a checkpoint is undone by going back to it. */
function undo(marks: Mark[], checkpointId: string): void {
  const from = marks.findLastIndex((mark) => mark.kind === "checkpoint" && mark.id === checkpointId);
  if (from === -1) return;
  for (const mark of marks.slice(from + 1))
    if (mark.kind === "cell" || mark.kind === "checkpoint") mark.isUndone = true;
}
