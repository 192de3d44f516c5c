/** The line above a view about one sandbox: its id, and the link back to its page. */

import { Link } from "wouter";
import { segment } from "../api/client";
import { shortId } from "./format";

export function BackToSandbox({ id }: { id: string }) {
  return (
    <p className="row">
      <Link href={`/sandboxes/${segment(id)}`}>
        Sandbox <code>{shortId(id)}</code>
      </Link>
    </p>
  );
}
