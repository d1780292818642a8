import type { Chain } from '../../../src/demo/chains'
import type { Machine } from '../machine'
import { type CountingRpc, startCountingRpc } from '../rpc'
import type { Candidate, Load } from './candidates'
import { pay } from './load'
import { withStage } from './sample'

export type Calls = { perPayment: number; methods: string }

/** JSON-RPC calls of a server during payments, in a separate pass, because counting costs time. */
export async function countCalls(
  machine: Machine,
  candidate: Candidate,
  load: Load,
): Promise<Calls> {
  let rpc: CountingRpc | undefined
  const rpcOf = ({ url }: Chain) => {
    rpc = startCountingRpc(url)
    return rpc.url
  }
  try {
    const setting = { candidate, load, rpcOf }
    return await withStage(machine, setting, async ({ server, warmUp, measured, target }) => {
      await pay(server.url, warmUp, target)
      rpc?.reset()
      const { paid } = await pay(server.url, measured, target)
      const counts = [...(rpc?.counts ?? [])].toSorted(([, a], [, b]) => b - a)
      const total = counts.reduce((sum, [, count]) => sum + count, 0)
      const methods = counts.map(([method, count]) => `${method} ${(count / paid).toFixed(2)}`)
      return { perPayment: total / paid, methods: methods.join(', ') }
    })
  } finally {
    await rpc?.stop()
  }
}
