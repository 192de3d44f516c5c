/** Small hooks of more than one view. */

import { useEffect, useState } from "react";
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
