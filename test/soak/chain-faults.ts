import { type Hex, numberToHex } from 'viem'
import { nap } from './payers'
import type { Random } from './random'
import type { Site } from './setup'

/** Faults of a chain itself. */
export type ChainFaults = {
  /** How often each of them happened. */
  counts: ReadonlyMap<string, number>
  /** Ends the faults. */
  stop(): Promise<void>
}

/** Below the configured fee cap. */
const baseFeeMaxWei = 20_000_000_000n
const baseFeeMinWei = 100_000_000n
/** Well within `reorg_depth`. */
const depthMax = 5

/** Reorganises the chain and raises its base fee tenfold, repeatedly. */
export function startChainFaults({ chain, turn }: Site, random: Random): ChainFaults {
  const counts = new Map<string, number>()
  const ending = new AbortController()
  const count = (name: string) => counts.set(name, (counts.get(name) ?? 0) + 1)

  async function raiseBaseFee(): Promise<void> {
    const block = (await chain.rpc('eth_getBlockByNumber', ['latest', false])) as {
      baseFeePerGas: Hex
    }
    const current = BigInt(block.baseFeePerGas)
    const from = current > baseFeeMinWei ? current : baseFeeMinWei
    const wei = from * 10n < baseFeeMaxWei ? from * 10n : baseFeeMaxWei
    await chain.rpc('anvil_setNextBlockBaseFeePerGas', [numberToHex(wei)])
    count('base fee times ten')
  }

  async function reorganise(): Promise<void> {
    const depth = random.between(1, depthMax)
    const returning = random.chance(0.4) ? await rawTransactionsOf(depth) : []
    await chain.rpc('anvil_reorg', [depth, returning.map((raw) => [raw, 0])])
    count(
      returning.length > 0 ? `reorganised by ${depth}, included again` : `reorganised by ${depth}`,
    )
  }

  /** Signed bytes of all transactions in the newest blocks, the oldest first. */
  async function rawTransactionsOf(depth: number): Promise<Hex[]> {
    const newest = Number(await chain.rpc('eth_blockNumber', []))
    const raws: Hex[] = []
    for (let number = newest - depth + 1; number <= newest; number++) {
      const block = await chain.rpc('eth_getBlockByNumber', [numberToHex(number), false])
      const { transactions } = block as { transactions: Hex[] }
      for (const hash of transactions)
        raws.push((await chain.rpc('eth_getRawTransactionByHash', [hash])) as Hex)
    }
    return raws
  }

  async function live(): Promise<void> {
    while (!ending.signal.aborted) {
      await nap(random.between(1_500, 5_000), ending.signal)
      if (ending.signal.aborted) return
      try {
        await turn(random.chance(0.65) ? reorganise : raiseBaseFee)
      } catch (error) {
        // A new block was mined in between, and the bytes are no longer valid.
        count(`not possible: ${error instanceof Error ? error.message.slice(0, 80) : 'unknown'}`)
      }
    }
  }

  const living = live()
  return {
    counts,
    stop() {
      ending.abort()
      return living
    },
  }
}
