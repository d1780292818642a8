import type { Address } from 'viem'
import * as Token from '../chain/token'
import type * as Network from '../protocol/Network'
import type { Errand } from '../settlement/Errand'
import type { DeskSettlement } from './context'

/** What the router may take of the desk's money. It only ever takes it in a call of the desk's own. */
export type Allowance = {
  /**
   * Sets aside allowance for the swap of an order. `busy`: it is being topped up, or must be once the
   * swaps under way are over; try again. `refused`: the asset does not let the desk approve.
   */
  reserve(orderId: string, amountAtomic: bigint): Promise<Reservation>
  /** The swap of an order is over, or was never written. */
  release(orderId: string): void
  /** A swap that an earlier process wrote. */
  adopt(orderId: string, amountAtomic: bigint): void
}

export type Reservation = 'reserved' | 'busy' | 'refused'

export type AllowanceOptions = {
  settlement: Pick<DeskSettlement, 'read' | 'run' | 'errand'>
  network: Network.Id
  asset: Address
  desk: Address
  router: Address
  /** What is approved at a time: bounds what a broken router could take. */
  boundAtomic: bigint
}

const approveGas = 400_000n
const approveWaitMs = 5_000

/**
 * Keeps one bounded allowance. It is topped up only while no swap is under way, by one approve at a
 * time: all who wait share it, also when it stays out for long or an earlier process sent it.
 */
export function createAllowance(options: AllowanceOptions): Allowance {
  const { settlement, network, asset, desk, router } = options
  const inFlight = new Map<string, bigint>()
  /** What nobody has set aside; undefined: the chain must be asked. Never more than there is. */
  let free: bigint | undefined
  let topUp: Promise<Reservation> | undefined
  let isDraining = false
  /** Serial number of the newest approve that may be under way. */
  let serial = 1
  /** Errand that an order has waited for: if it fails, that is the answer for all of them. */
  const awaited = new Map<string, string>()

  return {
    async reserve(orderId, amountAtomic) {
      if (inFlight.has(orderId)) return 'reserved'
      if (hasFailed(orderId)) return 'refused'
      if (topUp !== undefined) return waitFor(orderId)
      if (free === undefined && !isApproving()) await look()
      // Somebody else's turn may have come while the chain was asked.
      if (topUp !== undefined) return waitFor(orderId)
      // Behind an approve at the same account no swap is included any sooner.
      if (!isDraining && !isApproving() && take(orderId, amountAtomic)) return 'reserved'
      isDraining = true
      if (inFlight.size > 0) return 'busy'
      waitFor(orderId)
      topUp = raise(amountAtomic).finally(() => {
        topUp = undefined
        isDraining = false
      })
      const result = await topUp
      if (result !== 'busy') awaited.delete(orderId)
      return result === 'reserved' && !take(orderId, amountAtomic) ? 'busy' : result
    },
    release: (orderId) => void inFlight.delete(orderId),
    adopt(orderId, amountAtomic) {
      inFlight.set(orderId, amountAtomic)
      free = undefined
    },
  }

  function take(orderId: string, amountAtomic: bigint): boolean {
    if (free === undefined || free < amountAtomic) return false
    free -= amountAtomic
    inFlight.set(orderId, amountAtomic)
    return true
  }

  /** A swap under way may or may not be counted in what the chain says: it is subtracted in any case. */
  async function look(): Promise<void> {
    const before = sum()
    const { results } = await settlement.read(network, [Token.allowance(asset, desk, router)])
    const [data] = results
    const allowed = data === undefined ? 0n : (Token.toUint(data) ?? 0n)
    let promised = sum()
    if (before > promised) promised = before
    free = allowed > promised ? allowed - promised : 0n
  }

  async function raise(amountAtomic: bigint): Promise<Reservation> {
    if (!isApproving()) await look()
    if (free !== undefined && free >= amountAtomic) return 'reserved'
    const ended = await settlement.run(approval(), { waitMs: approveWaitMs })
    free = undefined
    if (ended.kind === 'failed') return 'refused'
    if (ended.kind === 'confirmed') await look()
    return ended.kind === 'confirmed' ? 'reserved' : 'busy'
  }

  function waitFor(orderId: string): 'busy' {
    awaited.set(orderId, nextId())
    return 'busy'
  }

  /** Whether the approve failed that an order has waited for. */
  function hasFailed(orderId: string): boolean {
    const id = awaited.get(orderId)
    awaited.delete(orderId)
    return id !== undefined && settlement.errand(id)?.state === 'failed'
  }

  function isApproving(): boolean {
    return settlement.errand(nextId())?.state === 'broadcast'
  }

  /** The approve under way, or the one to be written. */
  function approval(): Errand {
    return {
      id: nextId(),
      kind: 'allowance',
      product: 'desk',
      network,
      relayer: desk,
      ...Token.approve(asset, router, options.boundAtomic),
      valueWei: 0n,
      gasLimit: approveGas,
    }
  }

  /** Each id has one account nonce for ever: after one that has ended comes the next. */
  function nextId(): string {
    for (;;) {
      const id = `allowance:${network}:${desk}:${serial}`
      const errand = settlement.errand(id)
      if (errand === undefined || errand.state === 'broadcast') return id
      serial++
    }
  }

  function sum(): bigint {
    return [...inFlight.values()].reduce((total, each) => total + each, 0n)
  }
}
