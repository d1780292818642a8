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

/** Keeps one bounded allowance. It is topped up only while no swap is under way. */
export function createAllowance(options: AllowanceOptions): Allowance {
  const { settlement, network, asset, desk, router } = options
  const inFlight = new Map<string, bigint>()
  /** What nobody has set aside; undefined: the chain must be asked. Never more than there is. */
  let free: bigint | undefined
  let topUp: Promise<Reservation> | undefined
  let isDraining = false

  return {
    async reserve(orderId, amountAtomic) {
      if (inFlight.has(orderId)) return 'reserved'
      if (topUp !== undefined) return 'busy'
      if (free === undefined) await look()
      // Somebody else's turn may have come while the chain was asked.
      if (topUp !== undefined) return 'busy'
      if (!isDraining && take(orderId, amountAtomic)) return 'reserved'
      isDraining = true
      if (inFlight.size > 0) return 'busy'
      topUp = raise(orderId, amountAtomic).finally(() => {
        topUp = undefined
        isDraining = false
      })
      const result = await topUp
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

  async function raise(orderId: string, amountAtomic: bigint): Promise<Reservation> {
    await look()
    if (free !== undefined && free >= amountAtomic) return 'reserved'
    const ended = await settlement.run(errandOf(orderId), { waitMs: approveWaitMs })
    free = undefined
    if (ended.kind === 'failed') return 'refused'
    if (ended.kind === 'confirmed') await look()
    return ended.kind === 'confirmed' ? 'reserved' : 'busy'
  }

  function errandOf(orderId: string): Errand {
    let attempt = 1
    // Each id has one account nonce for ever: what ended without effect gets a new one.
    const isOver = (id: string) => {
      const state = settlement.errand(id)?.state
      return state === 'replaced' || state === 'confirmed'
    }
    while (isOver(`allowance:${orderId}:${attempt}`)) attempt++
    return {
      id: `allowance:${orderId}:${attempt}`,
      kind: 'allowance',
      product: 'desk',
      network,
      relayer: desk,
      ...Token.approve(asset, router, options.boundAtomic),
      valueWei: 0n,
      gasLimit: approveGas,
    }
  }

  function sum(): bigint {
    return [...inFlight.values()].reduce((total, each) => total + each, 0n)
  }
}
