/** The output of a cell as lines: what was read, then what came after it, a slice in each frame. */

import { useEffect, useMemo, useRef, useState } from "react";
import type { Feed } from "../api/feed";
import type { Output } from "../api/types";
import { OutputLines } from "./lines";
import { SLICE_MILLISECONDS, SlicedOutput } from "./slices";

type Read = { entries: Output[]; seq: number; isRunning: boolean } | null;

/** Returns the lines, and a number that grows whenever there are more of them. */
export function useOutput(id: string, read: Read, feed: Feed): [OutputLines, number] {
  const [revision, setRevision] = useState(0);
  const shown = useRef<OutputLines | null>(null);
  const building = useMemo(() => {
    const sliced = new SlicedOutput(new OutputLines());
    for (const { stream, text, at_seconds } of read?.entries ?? []) sliced.add(stream, text, at_seconds);
    // Most outputs are there at once.
    sliced.take(SLICE_MILLISECONDS);
    return { sliced, seq: read?.seq ?? Number.POSITIVE_INFINITY };
  }, [read]);
  // Until all that was read is there, what was seen before it stays.
  if (building.sliced.isDone || !shown.current || shown.current.lines.length === 0)
    shown.current = building.sliced.output;
  const isRunning = read?.isRunning ?? false;

  useEffect(() => {
    let frame = 0;
    const take = () => {
      frame = 0;
      const { sliced } = building;
      if (isRunning) {
        for (const event of feed.after(id, building.seq)) {
          sliced.add(event.stream, event.text, event.at);
          building.seq = event.seq;
        }
      }
      sliced.take();
      setRevision((count) => count + 1);
      if (!sliced.isDone) soon();
    };
    const soon = () => {
      frame ||= requestAnimationFrame(take);
    };
    if (isRunning || !building.sliced.isDone) soon();
    const leave = isRunning ? feed.subscribe(id, soon) : () => {};
    return () => {
      leave();
      cancelAnimationFrame(frame);
    };
  }, [id, isRunning, feed, building]);

  return [shown.current, revision];
}
