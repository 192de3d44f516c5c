/** The lines of an output: all of them where they are few, in a pane of their own where they are many. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { useRef, useState } from "react";
import { useFollowedEnd } from "../parts/follow";
import { copy } from "../parts/hooks";
import type { Line, OutputLines } from "./lines";

const FEW = 40;
const LINE_HEIGHT = 19;

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
  const rows = useVirtualizer({
    count: lines.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => LINE_HEIGHT,
    overscan: 20,
  });
  // After the list has placed itself at its beginning, as it does when it is mounted.
  const scrolled = useFollowedEnd(scroller, lines.length, LINE_HEIGHT);

  return (
    <div
      className={isWhole ? "line-pane whole" : "line-pane"}
      ref={scroller}
      tabIndex={0}
      onScroll={scrolled}
    >
      <div style={{ height: rows.getTotalSize(), position: "relative" }}>
        {rows.getVirtualItems().map((row) => {
          const line = lines[row.index];
          return (
            <div
              key={row.index}
              className="placed"
              style={{ transform: `translateY(${row.start}px)`, height: LINE_HEIGHT }}
            >
              {line && <LineView line={line} />}
            </div>
          );
        })}
      </div>
    </div>
  );
}

function LineView({ line }: { line: Line }) {
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
}
