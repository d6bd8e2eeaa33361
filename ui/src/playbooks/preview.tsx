/** The net of a text while it is being written; the last one that could be drawn stays until the next. */
import { EmptyState } from "../frame/pieces";

export interface Net {
  path: string;
  name: string;
  entry: string;
  nodes: { step: string; line: number | null }[];
  arcs: { source: string; target: string }[];
}

export function Preview({ net, stale, onGo }: { net: Net | null; stale: boolean; onGo: (line: number) => void }) {
  if (!net) return <EmptyState title={stale ? "No net yet" : ""}>{stale && <p>The net is drawn as soon as the text has no errors.</p>}</EmptyState>;
  return (
    <>
      <ul>
        {net.nodes.map((node) => (
          <li key={node.step}>
            <button type="button" onClick={() => node.line && onGo(node.line)}>
              {node.step}
            </button>
          </li>
        ))}
      </ul>
      {stale && <p class="net-words">As of the last text without errors</p>}
    </>
  );
}
