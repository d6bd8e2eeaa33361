/** The graph of the edited playbook; the last valid one is shown while the source has errors. */
import { EmptyState } from "../common/components";
import { NetView, type Net } from "../net";

export type { Net };

export function Preview({ net, stale, onGo }: { net: Net | null; stale: boolean; onGo: (line: number) => void }) {
  if (!net) return stale ? <EmptyState title="No graph"><p>It is shown when the source has no errors.</p></EmptyState> : null;
  const select = (step: string | null) => {
    const line = net.nodes.find((node) => node.step === step)?.line;
    if (line) onGo(line);
  };
  return (
    <>
      <NetView net={net} onSelect={select} />
      {stale && <p class="net-words">Last valid version</p>}
    </>
  );
}
