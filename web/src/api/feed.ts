/** The output of executions under way, as it comes: kept until what was read before it has arrived. */

import type { WatchEvent } from "./watch";

type OutputEvent = { seq: number; stream: "stdout" | "stderr"; text: string; at: number | null };
const MOST_EVENTS = 4_000;

export class Feed {
  private readonly kept = new Map<string, OutputEvent[]>();
  private readonly listeners = new Map<string, Set<() => void>>();

  /** Notes an event of the sandbox. */
  take(event: WatchEvent): void {
    const id = typeof event.execution_id === "string" ? event.execution_id : "";
    if (event.type === "output" && id) {
      const list = this.kept.get(id) ?? [];
      list.push({
        seq: event.seq ?? 0,
        stream: event.stream === "stderr" ? "stderr" : "stdout",
        text: String(event.text ?? ""),
        at: typeof event.at_seconds === "number" ? event.at_seconds : null,
      });
      if (list.length > MOST_EVENTS) list.splice(0, list.length - MOST_EVENTS);
      this.kept.set(id, list);
      for (const listener of this.listeners.get(id) ?? []) listener();
    } else if (event.type === "execution_finished") this.kept.delete(id);
  }

  /** Returns what came after a sequence number. */
  after(executionId: string, seq: number): OutputEvent[] {
    return (this.kept.get(executionId) ?? []).filter((event) => event.seq > seq);
  }

  subscribe(executionId: string, listener: () => void): () => void {
    const set = this.listeners.get(executionId) ?? new Set();
    set.add(listener);
    this.listeners.set(executionId, set);
    return () => set.delete(listener);
  }
}
