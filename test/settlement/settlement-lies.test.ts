import { describe, expect, test } from 'bun:test'
import { createHead, observeBlock, reconsiderHead } from '../../src/chain/head'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import * as Transfer from '../../src/protocol/Transfer'
import { isSend, type OwnSettlement, ownSettlement } from '../harness/own-settlement'
import { signTransfer, until } from '../harness/settlement'

// A block number that the chain does not have, reported by a faulty or malicious node.

/** Settled by account 8. */
async function settleByOther({ net }: OwnSettlement, transfer: Transfer.Transfer): Promise<string> {
  const call = { from: account(8).address, ...Transfer.call(transfer), gas: 500_000n }
  const [receipt] = await execute(net.chain, [call])
  return receipt?.transactionHash ?? ''
}

test('attack: a false block number that is reported once hides no later external settlement', async () => {
  await using own = await ownSettlement({ settlement: { checkMs: 50 } })
  const { net } = own
  let isTold = false
  net.tap.intercept = async ({ method }, forward) => {
    if (method !== 'eth_getBlockByNumber' || isTold) return undefined
    isTold = true
    const { result } = (await (await forward()).json()) as { result: object }
    return { result: { ...result, number: '0x3b9aca00' } }
  }
  await until(() => isTold)
  const looks = own.asked('eth_chainId')
  await until(() => own.asked('eth_chainId') > looks + 3)
  const transfer = signTransfer(own.network)
  let hash = ''
  net.tap.intercept = async ({ method }) => {
    if (isSend(method) && hash === '') hash = await settleByOther(own, transfer)
    return undefined
  }
  const outcome = await own.fixture.pay(transfer)
  expect(outcome).toMatchObject({ kind: 'confirmed', payment: { transaction: hash } })
  const taken = own.fixture.events.filter(({ event }) => event === 'block-number-taken-back')
  expect(taken).toHaveLength(1)
})

describe('the number of the newest block', () => {
  const timestamp = 1n
  const baseFeeWei = 1n
  const look = (head: ReturnType<typeof createHead>, number: bigint) => {
    observeBlock(head, { number, timestamp, baseFeeWei })
    reconsiderHead(head, number)
    return head.number
  }

  test('a sudden higher number is lowered when two polls contradict it', () => {
    const head = createHead()
    for (const number of [5_000n, 5_010n]) look(head, number)
    expect(look(head, 90_000n)).toBe(90_000n)
    expect(look(head, 5_020n)).toBe(90_000n)
    expect(look(head, 5_030n)).toBe(5_030n)
    expect(look(head, 5_040n)).toBe(5_040n)
  })

  test('attack: the number is not lowered below one that many polls confirmed', () => {
    const head = createHead()
    for (let number = 5_000n; number < 5_100n; number += 10n) look(head, number)
    for (let times = 0; times < 5; times++) expect(look(head, 7n)).toBe(5_090n)
    // After a long pause between two polls a higher number must not be lowered.
    for (let number = 90_000n; number < 90_100n; number += 10n) look(head, number)
    for (let times = 0; times < 5; times++) expect(look(head, 5_100n)).toBe(90_090n)
    // A node that lags a little lowers nothing.
    for (let times = 0; times < 5; times++) expect(look(head, 90_000n)).toBe(90_090n)
  })
})
