import type { Client } from '../../chain/client'
import * as Receipt from '../../chain/receipt'
import * as Transfer from '../../protocol/Transfer'
import { askChain, isNonceUsed, readReceipt } from '../nodes'
import type { Fate, Spending, Stored } from './spending'

/**
 * The state of signed payments on the chain. A gateway's own statement does not lower the counted
 * amounts, because it may settle later a payment that it called unpaid.
 */

/** Longest time of all reads, because a call of the client waits for them, ms. */
const allMs = 20_000

/**
 * Records what the chain proves of the payments of the day. Leaves those of a silent node as they are.
 * `rpc` replaces the public node. Throws a SpendingError.
 */
export async function settleByChain(spending: Spending, rpc: string | undefined): Promise<void> {
  const fates = new Map<string, Fate>()
  const late = AbortSignal.timeout(allMs)
  const byNetwork = Map.groupBy(spending.unsettled(), ({ network }) => network)
  const reads = Array.from(byNetwork, ([network, payments]) =>
    askChain(network, rpc, async (client) => {
      for (const payment of payments) {
        const fate = late.aborted ? undefined : await findFate(client, payment)
        if (fate !== undefined) fates.set(payment.id, fate)
      }
    }),
  )
  await Promise.all(reads)
  // Not among the reads: a file that fails must not pass for a silent node.
  for (const [id, fate] of fates) spending.settle(id, fate)
}

async function findFate(client: Client, payment: Stored): Promise<Fate | undefined> {
  const isUsed = await isNonceUsed(client, payment, payment.validBefore)
  if (isUsed === undefined) return undefined
  if (!isUsed) return { kind: 'void' }
  if (payment.scheme !== 'upto') return { kind: 'charged', micros: payment.signedMicros }
  return findCharge(client, payment)
}

/** The cost of a payment by `upto`: the named transaction must be the call that settled it. */
async function findCharge(client: Client, payment: Stored): Promise<Fate | undefined> {
  const { transaction, nonce, payer, asset, signedMicros } = payment
  if (transaction === undefined) return undefined
  const receipt = await readReceipt(client, transaction)
  if (receipt?.success !== true) return undefined
  const sent = Receipt.parseTransaction(
    await client.call('eth_getTransactionByHash', [transaction]),
  )
  const settled = sent && Transfer.parseCall(sent.to, sent.data)
  if (settled?.method !== 'permit2') return undefined
  const isOurs =
    settled.nonce === nonce &&
    settled.payer.toLowerCase() === payer.toLowerCase() &&
    settled.asset.toLowerCase() === asset.toLowerCase()
  if (!isOurs || settled.amountAtomic > signedMicros) return undefined
  return { kind: 'charged', micros: settled.amountAtomic }
}
