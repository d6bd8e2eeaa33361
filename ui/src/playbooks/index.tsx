/** The catalogue of playbooks: `params.rest` is what follows /playbooks/ in the address. */
import { EmptyState } from "../frame/pieces";

export function Playbooks({ params }: { params: Record<string, string> }) {
  return <EmptyState title={params.rest || "Playbooks"} />;
}
