/** The lines of an output: all of them where they are few, in a pane of their own where they are many. */

import { memo, useLayoutEffect, useRef, useState } from "react";
import { useFollowedEnd } from "../parts/follow";
import { copy } from "../parts/hooks";
import type { Line, OutputLines } from "./lines";

const FEW = 40;
const LINE_HEIGHT = 19;
/** Lines above and below what is seen that exist as well. */
const BEYOND = 20;

export function OutputView({ output, revision }: { output: OutputLines; revision: number }) {
  const [isWhole, setWhole] = useState(false);
  const { lines } = output;
  if (lines.length === 0) return null;

  return (
    <div className="output" data-revision={revision}>
      {output.dropped > 0 && (
        <p className="note">{output.dropped.toLocaleString()} older lines are not shown.</p>
      )}
      {lines.length <= FEW ? (
        <pre className="lines">
          {lines.map((line, index) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: lines are only appended
            <LineView key={index} line={line} />
          ))}
        </pre>
      ) : (
        <LinePane lines={lines} isWhole={isWhole} />
      )}
      {lines.length > FEW && (
        <div className="row small">
          <span className="quiet">{lines.length.toLocaleString()} lines</span>
          <button type="button" className="subtle" onClick={() => setWhole(!isWhole)} aria-pressed={isWhole}>
            {isWhole ? "Smaller" : "Larger"}
          </button>
          <button type="button" className="subtle" onClick={() => copy(output.text())}>
            Copy as shown
          </button>
        </div>
      )}
    </div>
  );
}

function LinePane({ lines, isWhole }: { lines: Line[]; isWhole: boolean }) {
  const scroller = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 0 });
  const followed = useFollowedEnd(scroller, lines.length, LINE_HEIGHT);
  useLayoutEffect(() => {
    const pane = scroller.current;
    if (!pane) return;
    const look = () => setView({ top: pane.scrollTop, height: pane.clientHeight });
    look();
    const observer = new ResizeObserver(look);
    observer.observe(pane);
    return () => observer.disconnect();
  }, []);
  // Every line has the same height: where each stands needs no list of all of them.
  const first = Math.max(0, Math.floor(view.top / LINE_HEIGHT) - BEYOND);
  const last = Math.min(lines.length, Math.ceil((view.top + view.height) / LINE_HEIGHT) + BEYOND);

  return (
    <div
      className={isWhole ? "line-pane whole" : "line-pane"}
      ref={scroller}
      tabIndex={0}
      onScroll={(event) => {
        followed(event);
        const { scrollTop: top, clientHeight: height } = event.currentTarget;
        setView((was) => (was.top === top && was.height === height ? was : { top, height }));
      }}
    >
      <div style={{ height: lines.length * LINE_HEIGHT, position: "relative" }}>
        {lines.slice(first, last).map((line, index) => (
          <div
            // biome-ignore lint/suspicious/noArrayIndexKey: the place of a line is its name
            key={first + index}
            className="placed"
            style={{ transform: `translateY(${(first + index) * LINE_HEIGHT}px)`, height: LINE_HEIGHT }}
          >
            <LineView line={line} />
          </div>
        ))}
      </div>
    </div>
  );
}

const LineView = memo(function LineView({ line }: { line: Line }) {
  return (
    <span className={`line ${line.stream}`}>
      {line.spans.map((span, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: spans of a line have no other name
        <span key={index} className={span.style || undefined}>
          {span.text}
        </span>
      ))}
      {line.cut > 0 && <em className="quiet"> … {line.cut.toLocaleString()} characters more</em>}
      {"\n"}
    </span>
  );
});
