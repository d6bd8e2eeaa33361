/** The net of a text while it is being written; the last one that could be drawn stays until the next. */
import { EmptyState } from "../frame/pieces";
import { NetView, type Net } from "../net";

export type { Net };

export function Preview({ net, stale, onGo }: { net: Net | null; stale: boolean; onGo: (line: number) => void }) {
  if (!net) return stale ? <EmptyState title="No net yet"><p>It is drawn as soon as the text has no errors.</p></EmptyState> : null;
  const select = (step: string | null) => {
    const line = net.nodes.find((node) => node.step === step)?.line;
    if (line) onGo(line);
  };
  return (
    <>
      <NetView net={net} onSelect={select} />
      {stale && <p class="net-words">As of the last text without errors</p>}
    </>
  );
}
