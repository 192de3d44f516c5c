/** Text of a result: everything in it is visible, and long text is cut until it is asked for. */

import { useState } from "react";
import { visible } from "../parts/format";

export const TEXT_CHARACTERS = 20_000;

export function Plain({ text }: { text: string }) {
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? text : text.slice(0, TEXT_CHARACTERS);
  return (
    <>
      <pre className="plain-text">{visible(shown)}</pre>
      {text.length > shown.length && (
        <button type="button" className="subtle" onClick={() => setWhole(true)}>
          {(text.length - shown.length).toLocaleString()} characters more
        </button>
      )}
    </>
  );
}
