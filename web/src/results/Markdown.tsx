/** Markdown of a guest: rendered, then reduced to plain markup; its links ask before they lead anywhere. */

import createDOMPurify, { type Config } from "dompurify";
import { Marked } from "marked";
import { AlertDialog } from "radix-ui";
import { type MouseEvent, useLayoutEffect, useMemo, useRef, useState } from "react";
import { visible } from "../parts/format";

const MOST_CHARACTERS = 200_000;
/** Deeper quotes and lists cost the parser more than anything says. */
const MOST_NESTING = 60;
const purifier = createDOMPurify(window);
const marked = new Marked({ async: false, gfm: true });

const ALLOWED: Config & { RETURN_TRUSTED_TYPE: true } = {
  ALLOWED_TAGS: [
    ..."a abbr b blockquote br code dd del dl dt em h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre s samp small span".split(
      " ",
    ),
    ..."strong sub sup table tbody td tfoot th thead tr u ul var".split(" "),
  ],
  ALLOWED_ATTR: ["href", "src", "alt", "title", "align", "colspan", "rowspan", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|data:image\/(?:png|jpeg|gif|webp);base64,)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_TRUSTED_TYPE: true,
};

purifier.addHook("afterSanitizeAttributes", (node) => {
  if (node instanceof HTMLImageElement && !node.src.startsWith("data:")) {
    node.replaceWith(
      document.createTextNode(`[picture not loaded: ${visible(node.getAttribute("src") ?? "")}]`),
    );
  }
  // A data address is for pictures.
  if (node instanceof HTMLAnchorElement && /^\s*data:/i.test(node.getAttribute("href") ?? ""))
    node.removeAttribute("href");
});

export default function Markdown({ text }: { text: string }) {
  const place = useRef<HTMLDivElement>(null);
  const [address, setAddress] = useState<string | null>(null);
  const isPlain = useMemo(() => text.length > MOST_CHARACTERS || isDeep(text), [text]);

  useLayoutEffect(() => {
    if (place.current && !isPlain) place.current.innerHTML = clean(text) as unknown as string;
  }, [text, isPlain]);

  if (isPlain) return <pre className="plain-text">{visible(text)}</pre>;

  const asked = (event: MouseEvent) => {
    const link = (event.target as HTMLElement).closest("a");
    if (!link) return;
    event.preventDefault();
    if (link.href) setAddress(link.href);
  };

  return (
    <>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: it holds links, which keys reach */}
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: Enter on a link is a click */}
      <div className="markdown" ref={place} onClick={asked} onAuxClick={asked} />
      <AlertDialog.Root open={address !== null} onOpenChange={(isOpen) => !isOpen && setAddress(null)}>
        <AlertDialog.Portal>
          <AlertDialog.Overlay className="overlay" />
          <AlertDialog.Content className="dialog">
            <AlertDialog.Title>Open this address?</AlertDialog.Title>
            <AlertDialog.Description>
              The sandbox made this link; whoever serves it learns that you came.
            </AlertDialog.Description>
            <code className="whole-address">{visible(address ?? "")}</code>
            <div className="row end">
              <AlertDialog.Cancel>Stay here</AlertDialog.Cancel>
              <a
                className="button"
                href={address ?? undefined}
                target="_blank"
                rel="noopener noreferrer"
                onClick={() => setAddress(null)}
              >
                Open in a new tab
              </a>
            </div>
          </AlertDialog.Content>
        </AlertDialog.Portal>
      </AlertDialog.Root>
    </>
  );
}

function clean(text: string): TrustedHTML {
  return purifier.sanitize(marked.parse(text) as string, ALLOWED) as unknown as TrustedHTML;
}

function isDeep(text: string): boolean {
  return new RegExp(
    `^(?:[ \\t>*+-]|\\d+[.)]){${MOST_NESTING},}|(?:[\\[(*_]){${MOST_NESTING * 4},}`,
    "m",
  ).test(text);
}
