import { type Client, createClient, RpcError, RpcFault } from '../chain/client'

/** Asks nodes, then ends their connections. Undefined when none of them has an answer. */
export async function askNodes<Answer>(
  urls: readonly string[],
  question: (client: Client) => Promise<Answer>,
  timeoutMs = 10_000,
): Promise<Answer | undefined> {
  const client = createClient({ urls, timeoutMs, log: () => undefined })
  try {
    return await question(client)
  } catch (error) {
    if (error instanceof RpcError || error instanceof RpcFault) return undefined
    throw error
  } finally {
    client.close()
  }
}
