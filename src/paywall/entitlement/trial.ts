import type { Address } from 'viem'
import { RpcError, RpcFault } from '../../chain/client'
import * as Token from '../../chain/token'
import { createRateLimit } from '../../http/rate-limit'
import * as Amount from '../../protocol/Amount'
import type { Network } from '../../protocol/Network'
import type * as Problem from '../../protocol/Problem'
import { balanceAt, createSemaphore, uintOf } from '../../settlement/read/holdings'
import type { Settlement } from '../../settlement/settlement'
import * as Denial from '../Denial'
import type { Item } from '../offer/Item'

/** The check before a trial: its wallet holds enough of the asset, and has held it for a while. */

type Floor = NonNullable<Item['trial']>['floors'][number]

/** A wallet that asks for its first free answer, and the address of its client. */
type Asking = {
  wallet: Address
  network: Pick<Network, 'id' | 'asset'>
  floor: Floor
  client: string
}

/** Reads of the chain at once, and those that wait. */
const readsMax = 8
const waitingMax = 64
export type TrialOptions = {
  settlement: Pick<Settlement, 'read' | 'rpc'>
  /** Wallets of one client that are read in a minute. */
  trialsPerMinute: () => number
  now: () => number
}

/**
 * Resolves with the problem of a wallet that may not begin a trial. Rejects with ProblemError when no
 * node answers. Anyone can make wallets, so the reads for a client and for all clients are limited; a
 * wallet beyond them may still pay.
 */
export function createTrialCheck({ settlement, trialsPerMinute, now }: TrialOptions) {
  const semaphore = createSemaphore(readsMax, waitingMax)
  const rateLimit = createRateLimit({ cells: 1 << 12 })
  return async (asking: Asking): Promise<Problem.ProblemError | undefined> => {
    if (asking.floor.balanceAtomic === 0n) return undefined
    const isWithin = rateLimit.take(asking.client, trialsPerMinute(), now()).ok
    const reading = isWithin ? semaphore.run(() => refusalOf(settlement, asking)) : undefined
    if (reading === undefined) return Denial.notEntitled('trial_busy')
    return reading.catch((error: unknown) => {
      if (!(error instanceof RpcFault || error instanceof RpcError)) throw error
      throw Denial.unread()
    })
  }
}

async function refusalOf(
  settlement: TrialOptions['settlement'],
  { wallet, network, floor: { balanceAtomic, blocks } }: Asking,
): Promise<Problem.ProblemError | undefined> {
  const { id, asset } = network
  const balance = Token.balanceOf(asset.address, wallet)
  const { blockNumber, results } = await settlement.read(id, [balance])
  const held = uintOf(results[0])
  if (held === undefined) throw new RpcFault('the balance of the address cannot be read')
  const least = `${Amount.toDecimal(balanceAtomic, asset.decimals)} ${asset.symbol}`
  if (held < balanceAtomic) {
    return Denial.notEntitled('trial_balance_too_low', `A trial needs a wallet with ${least}`)
  }
  const before = blockNumber - BigInt(blocks)
  const heldBefore = before < 0n ? 0n : await balanceAt(settlement, network, wallet, before)
  if (heldBefore >= balanceAtomic) return undefined
  const detail = `A trial needs a wallet that has held ${least} for ${blocks} blocks`
  return Denial.notEntitled('trial_balance_too_young', detail)
}
