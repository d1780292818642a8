import { numberToHex } from 'viem'
import * as Multicall from '../../../src/chain/multicall'
import { account } from '../../../src/demo/accounts'
import { type Chain, execute } from '../../../src/demo/chains'
import type { TransferMethod } from '../../../src/protocol/Asset'
import * as Transfer from '../../../src/protocol/Transfer'
import { inSeconds, randomNonce } from '../../harness/buyer'
import { startChains } from '../../harness/chains'
import { payee } from '../shipped'
import { network } from './network'
import { approve, mint, type Payer, payers, sign } from './payers'

/** Gas of the settling transactions, by the number of their payments. */
export type Formed = Map<number, { transactions: number; gas: number }>

const transferTopic = '0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef'

/** Adds every transaction of a chain that paid the payee. */
export async function addFormed(formed: Formed, chain: Chain): Promise<void> {
  const last = Number(await chain.rpc('eth_blockNumber', []))
  const to = `0x${payee.slice(2).toLowerCase().padStart(64, '0')}`
  for (let number = 1; number <= last; number++) {
    const receipts = await chain.rpc('eth_getBlockReceipts', [numberToHex(number)])
    for (const { gasUsed, logs } of receipts as {
      gasUsed: string
      logs: { topics: string[] }[]
    }[]) {
      const size = logs.filter(
        ({ topics }) => topics[0] === transferTopic && topics[2] === to,
      ).length
      if (size === 0) continue
      const known = formed.get(size) ?? { transactions: 0, gas: 0 }
      known.transactions++
      known.gas += Number(gasUsed)
      formed.set(size, known)
    }
  }
}

/** Payments and gas of a range of sizes. */
export function totals(formed: Formed, from: number, to: number) {
  let [transactions, payments, gas] = [0, 0, 0]
  for (const [size, each] of formed) {
    if (size < from || size > to) continue
    transactions += each.transactions
    payments += size * each.transactions
    gas += each.gas
  }
  return { transactions, payments, perPayment: payments === 0 ? undefined : gas / payments }
}

/**
 * Gas per payment when our calls are sent without the gateway: alone, and that many in one
 * aggregate3. The payee has a token balance and the payers differ, as in a gateway that has run for
 * a while.
 */
export async function measureSizes(
  method: TransferMethod,
  sizes: readonly number[],
): Promise<{ lone: number; batches: { size: number; perPayment: number }[] }> {
  const [chain] = await startChains([network()])
  if (chain === undefined) throw new Error('no chain')
  try {
    const holders = payers(Math.max(...sizes))
    await mint(chain, network(), holders)
    if (method === 'permit2') await approve(chain, network(), holders)
    const settle = async (members: readonly Payer[]) => {
      const calls = members.map((payer) => Transfer.call(transfer(method, payer)))
      const [only] = calls
      const call = calls.length === 1 && only ? only : Multicall.aggregate(calls)
      const [receipt] = await execute(chain, [
        { ...call, from: account(0).address, gas: 28_000_000n },
      ])
      const paid = receipt?.logs.filter(({ topics }) => topics[0] === transferTopic).length
      if (!receipt || paid !== members.length) throw new Error(`${paid} of ${members.length} paid`)
      return gasOf(chain, receipt.transactionHash)
    }
    // The first payment fills the payee's balance, which costs more once.
    await settle(holders.slice(0, 1))
    const lone = await settle(holders.slice(1, 2))
    const batches = []
    for (const size of sizes) {
      const gas = await settle(holders.slice(0, size))
      batches.push({ size, perPayment: gas / size })
    }
    return { lone, batches }
  } finally {
    await chain.stop()
  }
}

function transfer(method: TransferMethod, payer: Payer): Transfer.Transfer {
  const { id, chainId, asset } = network()
  return sign(
    {
      method,
      network: id,
      chainId,
      asset: asset.address,
      payee,
      amountAtomic: 10_000n,
      nonce: randomNonce(),
      validAfter: 0n,
      validBefore: inSeconds(300),
    },
    network(),
    payer,
  )
}

async function gasOf(chain: Chain, hash: string): Promise<number> {
  const receipt = await chain.rpc('eth_getTransactionReceipt', [hash])
  return Number((receipt as { gasUsed: string }).gasUsed)
}
