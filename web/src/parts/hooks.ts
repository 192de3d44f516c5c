/** Small hooks of more than one view. */

import { useEffect, useState, useSyncExternalStore } from "react";
import { areLettersOn } from "./letters";

/** The time, anew each so many milliseconds, while the page is seen. */
export function useNow(everyMilliseconds = 1000): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) setNow(Date.now());
    }, everyMilliseconds);
    return () => clearInterval(timer);
  }, [everyMilliseconds]);
  return now;
}

/** How often times in lists are read anew: each turn paints all of them. */
const LIST_MILLISECONDS = 5000;

let tick = Date.now();
const tickers = new Set<() => void>();
let ticking: ReturnType<typeof setInterval> | null = null;

function everyTurn(listener: () => void): () => void {
  tickers.add(listener);
  if (ticking === null) {
    tick = Date.now();
    ticking = setInterval(() => {
      if (document.hidden) return;
      tick = Date.now();
      for (const each of tickers) each();
    }, LIST_MILLISECONDS);
  }
  return () => {
    tickers.delete(listener);
    if (tickers.size > 0 || ticking === null) return;
    clearInterval(ticking);
    ticking = null;
  };
}

/** A text of a list that depends on the time: what shows it is rendered anew only when it reads otherwise. */
export function useTimeText(text: (now: number) => string): string {
  return useSyncExternalStore(everyTurn, () => text(tick));
}

export function useMedia(query: string): boolean {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const listen = () => setMatches(list.matches);
    list.addEventListener("change", listen);
    return () => list.removeEventListener("change", listen);
  }, [query]);
  return matches;
}

/** Keys that act where no field has the focus. */
export function useKeys(keys: Record<string, () => void>): void {
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target)) return;
      if (!areLettersOn() || (event.key === "Enter" && isControl(event.target))) return;
      const act = keys[event.key];
      if (act) {
        event.preventDefault();
        act();
      }
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, [keys]);
}

export function isField(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return (
    target.isContentEditable ||
    ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName) ||
    !!target.closest("[role=dialog]")
  );
}

/** Whether Enter does something there already. */
function isControl(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && !!target.closest("button, a[href], summary");
}

export async function copy(text: string): Promise<void> {
  await navigator.clipboard.writeText(text);
}

/** Waits until what is rendered now has been painted. */
export function painted(): Promise<void> {
  // A hidden page paints nothing.
  if (document.hidden) return Promise.resolve();
  return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
}
