/** Changes of files that are not saved yet. They outlive the editor: another file, tab or view must not lose them. */

import type * as api from "../api/schema";
import type { EditableText } from "./Files";

export type Draft = { file: api.FileInfo; read: EditableText; now: string };

const drafts = new Map<string, Map<string, Draft>>();

function ask(event: BeforeUnloadEvent): void {
  event.preventDefault();
}

/** Keeps what was typed; what reads like the file is no change. */
export function keepDraft(sandboxId: string, draft: Draft): void {
  if (draft.now === draft.read.lines) {
    dropDraft(sandboxId, draft.file.path);
    return;
  }
  const known = drafts.get(sandboxId) ?? new Map<string, Draft>();
  drafts.set(sandboxId, known.set(draft.file.path, draft));
  addEventListener("beforeunload", ask);
}

export function dropDraft(sandboxId: string, path: string): void {
  const known = drafts.get(sandboxId);
  if (!known?.delete(path)) return;
  if (known.size === 0) drafts.delete(sandboxId);
  if (drafts.size === 0) removeEventListener("beforeunload", ask);
}

export function draftOf(sandboxId: string, path: string): Draft | null {
  return drafts.get(sandboxId)?.get(path) ?? null;
}

export function draftsOf(sandboxId: string): Draft[] {
  return [...(drafts.get(sandboxId)?.values() ?? [])];
}
