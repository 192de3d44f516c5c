/** Whether a pane that follows its end still does: content moves the end away, and only the viewer moves upwards. */

import { type RefObject, type UIEvent, useCallback, useLayoutEffect, useRef } from "react";

type Pane = Pick<HTMLElement, "scrollTop" | "clientHeight" | "scrollHeight">;
const MOVED = 4;

/** A scroll event may come when more content is there than was when the pane was moved: that is no reason to stop. */
export function follows(was: boolean, lastTop: number, pane: Pane, slack: number): boolean {
  if (pane.scrollTop + pane.clientHeight >= pane.scrollHeight - slack) return true;
  return was && pane.scrollTop >= lastTop - MOVED;
}

/** Keeps a pane at its end while it grows, until the viewer scrolls up; returns the handler of its scroll events. */
export function useFollowedEnd(
  scroller: RefObject<HTMLElement | null>,
  size: number,
  slack: number,
): (event: UIEvent<HTMLElement>) => void {
  const isFollowing = useRef(true);
  const lastTop = useRef(0);
  // Before the paint, so that no scroll event comes between the growth and the move.
  // biome-ignore lint/correctness/useExhaustiveDependencies: new content is what moves the view
  useLayoutEffect(() => {
    const pane = scroller.current;
    if (!pane || !isFollowing.current) return;
    pane.scrollTop = pane.scrollHeight;
    lastTop.current = pane.scrollTop;
  }, [scroller, size]);
  return useCallback(
    (event) => {
      const pane = event.currentTarget;
      isFollowing.current = follows(isFollowing.current, lastTop.current, pane, slack);
      lastTop.current = pane.scrollTop;
    },
    [slack],
  );
}
