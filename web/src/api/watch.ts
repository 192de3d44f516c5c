/** The one WebSocket of this tab, over which all that is live comes. It comes back by itself when it breaks. */

import { useEffect, useRef, useSyncExternalStore } from "react";
import { watchPlace } from "./reader";

export type WatchEvent = { id: number; type: string; seq?: number } & Record<string, unknown>;
export type WatchState = "connecting" | "open" | "lost";
type Listener = (event: WatchEvent) => void;
type Follow = {
  what: "server" | "sandbox";
  sandboxId?: string;
  metrics?: boolean;
  after: number | null;
  listener: Listener;
};

const LONGEST_WAIT_SECONDS = 30;
const HIDDEN_MINUTES = 10;

class Watch {
  state: WatchState = "connecting";
  /** Since when it is lost, in milliseconds. */
  lostAt: number | null = null;
  private socket: WebSocket | null = null;
  private readonly follows = new Map<number, Follow>();
  private readonly listeners = new Set<() => void>();
  private nextId = 1;
  private failures = 0;
  private retry: ReturnType<typeof setTimeout> | null = null;
  private hidden: ReturnType<typeof setTimeout> | null = null;

  constructor() {
    document.addEventListener("visibilitychange", () => this.seen(!document.hidden));
  }

  follow(given: Omit<Follow, "after">): () => void {
    const id = this.nextId++;
    const follow: Follow = { ...given, after: null };
    this.follows.set(id, follow);
    if (this.socket?.readyState === WebSocket.OPEN) this.say(id, follow);
    else this.connect();
    return () => {
      this.follows.delete(id);
      if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ op: "leave", id }));
      if (this.follows.size === 0) this.close();
    };
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly read = (): WatchState => this.state;

  readonly readLostAt = (): number | null => this.lostAt;

  private connect(): void {
    if (this.socket || this.follows.size === 0 || this.retry) return;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const { path, protocols } = watchPlace();
    const socket = new WebSocket(`${scheme}://${location.host}${path}`, protocols);
    this.socket = socket;
    socket.onopen = () => {
      this.failures = 0;
      this.become("open");
      for (const [id, follow] of this.follows) this.say(id, follow);
    };
    socket.onmessage = ({ data }) => this.take(String(data));
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.socket = null;
      this.become("lost");
      const wait = Math.min(LONGEST_WAIT_SECONDS, 2 ** this.failures) * (0.75 + Math.random() / 2);
      this.failures += 1;
      this.retry = setTimeout(() => {
        this.retry = null;
        this.connect();
      }, wait * 1000);
    };
  }

  private close(): void {
    const socket = this.socket;
    this.socket = null;
    socket?.close();
    if (this.retry) clearTimeout(this.retry);
    this.retry = null;
    this.become("connecting");
  }

  private say(id: number, follow: Follow): void {
    const { what, sandboxId, metrics, after } = follow;
    const asked: Record<string, unknown> = { op: "follow", id, what };
    if (sandboxId) asked.sandbox_id = sandboxId;
    if (metrics) asked.metrics = true;
    if (after !== null) asked.after = after;
    this.socket?.send(JSON.stringify(asked));
  }

  private take(text: string): void {
    const message = JSON.parse(text) as WatchEvent & { events?: WatchEvent[] };
    const follow = this.follows.get(message.id);
    if (!follow) return;
    // What came together is one message.
    for (const event of message.events ?? [message]) {
      if (typeof event.seq === "number") follow.after = event.seq;
      follow.listener(event);
    }
  }

  private become(state: WatchState): void {
    if (this.state === state) return;
    this.state = state;
    this.lostAt = state === "lost" ? Date.now() : null;
    for (const listener of this.listeners) listener();
  }

  /** A tab that nobody looks at for long watches nothing. */
  private seen(isSeen: boolean): void {
    if (this.hidden) clearTimeout(this.hidden);
    this.hidden = null;
    if (isSeen) this.connect();
    else this.hidden = setTimeout(() => this.close(), HIDDEN_MINUTES * 60_000);
  }
}

let watch: Watch | null = null;

function theWatch(): Watch {
  watch ??= new Watch();
  return watch;
}

export function useWatchState(): WatchState {
  return useSyncExternalStore(theWatch().subscribe, theWatch().read);
}

/** Since when the live view is lost; null: it is not. */
export function useLostAt(): number | null {
  return useSyncExternalStore(theWatch().subscribe, theWatch().readLostAt);
}

type FollowOptions = { isOn?: boolean; metrics?: boolean };

/** Follows a sandbox (or the server) as long as the caller is shown. */
export function useFollow(
  what: "server" | "sandbox",
  sandboxId: string | undefined,
  listener: Listener,
  { isOn = true, metrics = false }: FollowOptions = {},
): void {
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => {
    if (!isOn) return;
    const told: Listener = (event) => latest.current(event);
    return theWatch().follow({ what, listener: told, metrics, ...(sandboxId ? { sandboxId } : {}) });
  }, [what, sandboxId, isOn, metrics]);
}
