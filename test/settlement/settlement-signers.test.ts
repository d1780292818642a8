import { expect, test } from 'bun:test'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import * as Transfer from '../../src/protocol/Transfer'
import { type OwnSettlement, ownSettlement } from '../harness/own-settlement'
import { signTransfer } from '../harness/settlement'

// Signatures that only the simulation checks: those of payers that have paid before, and those of
// one batch. A forged signature must not be accepted because of the valid ones beside it.

/** In the name of the payer, signed by another key. */
function forge(
  network: NetworkConfig,
  options: Parameters<typeof signTransfer>[1] = {},
): Transfer.Transfer {
  return signTransfer(network, { payer: account(1).address, ...options, from: 9 })
}

const refused = { kind: 'refused', reason: 'invalid_exact_evm_signature' }
const payments = ({ fixture }: OwnSettlement) =>
  fixture.sql.query('SELECT id FROM payments').all().length

test.concurrent('error: a forged signature in the name of a payer that never paid causes no call to a node', async () => {
  await using own = await ownSettlement()
  const { fixture, network } = own
  const before = own.asked('eth_call')
  expect(await fixture.pay(forge(network))).toMatchObject(refused)
  expect(own.asked('eth_call')).toBe(before)
})

test.concurrent('error: forged signatures in the names of payers that have paid cause one call to a node', async () => {
  await using own = await ownSettlement()
  const { fixture, network } = own
  const froms = [1, 2, 3]
  for (const from of froms) await fixture.pay(signTransfer(network, { from }))
  const before = own.asked('eth_call')
  for (const from of froms) {
    const method = from === 2 ? 'permit2' : 'eip3009'
    const reason = from === 2 ? 'invalid_permit2_signature' : refused.reason
    const junk = forge(network, { payer: account(from).address, method })
    expect(await fixture.pay(junk)).toMatchObject({ kind: 'refused', reason })
  }
  expect(own.asked('eth_call')).toBe(before + 1)
  expect((await fixture.pay(signTransfer(network))).kind).toBe('confirmed')
  expect(payments(own)).toBe(4)
})

test.concurrent('a payer that has code since it paid is settled as one with code', async () => {
  await using own = await ownSettlement()
  const { fixture, net, network } = own
  await fixture.pay(signTransfer(network, { from: 5 }))
  const payer = account(5).address
  // Uses 180,000 gas, then accepts.
  const slow = '0x611b585b600190038060035750631626ba7e60e01b60005260206000f3'
  await net.chain.rpc('anvil_setCode', [payer, slow])
  const codes = () => own.asked('eth_getCode')
  const asked = codes()
  const pay = () => fixture.pay(signTransfer(network, { from: 1, payer }))
  // Accepted like the signatures before; then every signer is recovered.
  expect((await pay()).kind).toBe('confirmed')
  expect(codes()).toBe(asked)
  expect((await pay()).kind).toBe('confirmed')
  expect(codes()).toBe(asked + 1)
  const gas = fixture.sql.query('SELECT gas_limit FROM transactions ORDER BY nonce').values()
  expect(gas.flat().map(Number)).toEqual([200_000, 600_000, 600_000])
})

test.concurrent('error: a forged signature in a batch is found, and the other members are paid', async () => {
  await using own = await ownSettlement()
  const { fixture, network } = own
  const honest = [1, 2, 3, 4].map((from) =>
    signTransfer(network, { from, amountAtomic: BigInt(100 + from) }),
  )
  const junk = [1, 2, 3, 4].map((from) => forge(network, { payer: account(from).address }))
  // The first payment is sent alone; the others collect into a batch.
  const all = [signTransfer(network), ...honest.flatMap((each, at) => [each, junk[at] ?? each])]
  const outcomes = await Promise.all(all.map((each) => fixture.pay(each)))
  for (const [at, outcome] of outcomes.entries()) {
    const isJunk = at > 0 && at % 2 === 0
    expect(outcome).toMatchObject(isJunk ? refused : { kind: 'confirmed' })
  }
  expect(await own.paid()).toBe(5_000n + 101n + 102n + 103n + 104n)
  expect(payments(own)).toBe(5)
})

for (const method of ['eip3009', 'permit2'] as const) {
  for (const others of [0, 4]) {
    test.concurrent(`error: a payment that the payer settled is not delivered for a credential that names its nonce (${method}, ${others} beside)`, async () => {
      await using own = await ownSettlement({ settlement: { payoutExclusive: true } })
      const { fixture, net, network } = own
      await fixture.pay(signTransfer(network))
      const genuine = signTransfer(network, { method })
      await execute(net.chain, [
        { from: account(8).address, ...Transfer.call(genuine), gas: 500_000n },
      ])
      const stolen = forge(network, {
        method,
        nonce: genuine.nonce,
        validBefore: genuine.validBefore,
      })
      const beside = Array.from({ length: others }, (_, at) =>
        signTransfer(network, { amountAtomic: BigInt(at + 1) }),
      )
      // Bound to a challenge of ours: the payer itself would be served.
      const outcomes = await Promise.all(
        [...beside, stolen].map((each) => fixture.pay(each, { bound: true })),
      )
      const reason = method === 'permit2' ? 'invalid_permit2_signature' : refused.reason
      expect(outcomes.pop()).toMatchObject({ kind: 'refused', reason })
      expect(outcomes.map(({ kind }) => kind)).toEqual(beside.map(() => 'confirmed'))
      expect(await fixture.pay(genuine, { bound: true })).toMatchObject({ kind: 'confirmed' })
    })
  }
}
