import type { Address, Hex } from 'viem'
import { RpcError, RpcFault } from '../../chain/client'
import { isHex } from '../../chain/receipt'
import * as Token from '../../chain/token'
import * as Abi from '../../protocol/Abi'
import type { Network } from '../../protocol/Network'
import type { Settlement } from '../settlement'

/** What an address holds, read for requests that cost nothing. */

/** The balance of the asset of a network after a block. Throws RpcFault where no node has that state. */
export async function balanceAt(
  { rpc }: Pick<Settlement, 'rpc'>,
  { id, asset }: Pick<Network, 'id' | 'asset'>,
  address: Address,
  block: bigint,
): Promise<bigint> {
  const call = Token.balanceOf(asset.address, address)
  try {
    const answer = await rpc(id, 'eth_call', [call, `0x${block.toString(16)}`])
    const balance = isHex(answer) ? uintOf(answer) : undefined
    if (balance !== undefined) return balance
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
  }
  throw new RpcFault(`no node has the state of block ${block}`)
}

/** The integer of a result of `Settlement.read`; undefined when its call failed. */
export function uintOf(data: Hex | undefined): bigint | undefined {
  return data === undefined ? undefined : Abi.uintAt(data.slice(2))
}

/**
 * Limits the concurrent reads of the chain for a product. They share the node with payments, which must
 * not wait for many free requests.
 */
type Semaphore = {
  /** Runs the work when a slot is free; undefined when too many wait already. Rejects with it. */
  run<T>(work: () => Promise<T>): Promise<T> | undefined
}

/** `max` run at once, `waitingMax` wait, oldest first. */
export function createSemaphore(max: number, waitingMax: number): Semaphore {
  const waiting: (() => void)[] = []
  let running = 0
  async function wait<T>(work: () => Promise<T>): Promise<T> {
    if (running >= max) await new Promise<void>((resolve) => waiting.push(resolve))
    // Work that ends passes its slot on, so that no other work takes it in between.
    else running++
    try {
      return await work()
    } finally {
      const next = waiting.shift()
      if (next) next()
      else running--
    }
  }
  return {
    run: (work) => (running >= max && waiting.length >= waitingMax ? undefined : wait(work)),
  }
}
