/** Python that is read and not edited: highlighted by its grammar, without the editor. */

import { classHighlighter, highlightCode } from "@lezer/highlight";
import { parser } from "@lezer/python";
import { memo, type ReactNode, useMemo, useState } from "react";
import { visible } from "../parts/format";

const FOLDED_LINES = 30;
/** Above this many characters code is shown plain: its tree would cost more than it says. */
const MOST_CHARACTERS = 200_000;

export const Code = memo(function Code({ code }: { code: string }) {
  const [isOpen, setOpen] = useState(false);
  const lines = useMemo(() => code.replace(/\n+$/, "").split("\n"), [code]);
  const isLong = lines.length > FOLDED_LINES + 5;
  const shown = isLong && !isOpen ? lines.slice(0, FOLDED_LINES).join("\n") : lines.join("\n");
  const parts = useMemo(() => highlighted(shown), [shown]);

  return (
    <div className="code">
      <pre>{parts}</pre>
      {isLong && (
        <button type="button" className="subtle" onClick={() => setOpen(!isOpen)} aria-expanded={isOpen}>
          {isOpen ? "Fold" : `${lines.length - FOLDED_LINES} lines more`}
        </button>
      )}
    </div>
  );
});

function highlighted(code: string): ReactNode[] {
  if (code.length > MOST_CHARACTERS) return [visible(code)];
  const parts: ReactNode[] = [];
  const put = (text: string, classes: string) => {
    parts.push(
      classes ? (
        <span key={parts.length} className={classes}>
          {visible(text)}
        </span>
      ) : (
        visible(text)
      ),
    );
  };
  highlightCode(code, parser.parse(code), classHighlighter, put, () => parts.push("\n"));
  return parts;
}
