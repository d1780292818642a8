import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, getAddress, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute, mine } from '../../src/demo/chains'
import type { Id } from '../../src/protocol/Network'
import { permit2Address } from '../../src/protocol/Permit'
import { ask, domains, inSeconds, settlementOf } from '../harness/buyer'
import { deploy, setAutomine } from '../harness/chains'
import { age, freshWallet, setAllowances, setTokens, signApprove } from '../harness/sponsor'
import { uptoOffer } from '../harness/upto'
import {
  answering,
  base,
  body,
  costOf,
  json,
  type ModelShop,
  openBuyer,
  startModels,
  usage,
} from '../harness/upto-shop'
import * as Wallets from '../harness/wallets'
import { until } from '../harness/world'

/** Whole answers that are paid by the x402 scheme `upto`. */

const robinhood = 'eip155:4663'
let shop: ModelShop
beforeAll(async () => {
  shop = await startModels()
})
afterAll(() => shop.stop())
beforeEach(() => shop.clear())

/** The largest ceiling of `body`, as its offer names it. */
async function ceilingOf(network: Id = base): Promise<bigint> {
  const { required } = await ask(shop.chat(), { method: 'POST', headers: json, body })
  return BigInt(uptoOffer(required, network)?.amount ?? 0)
}

describe('a whole answer', () => {
  for (const network of [base, robinhood] as const)
    test(`a whole answer is charged by its usage on ${network}`, async () => {
      shop.upstream.script = answering(usage(7, 20))
      const before = await shop.paid(network)
      const ceiling = await ceilingOf(network)
      const response = await shop.buy({ network })
      expect([response.status, await response.text()]).toEqual([200, usage(7, 20)])
      const cost = costOf(7, 20)
      expect(await shop.paid(network)).toBe(before + BigInt(cost))
      const { transaction, extensions, ...settled } = settlementOf(response)
      expect(settled).toEqual({
        success: true,
        network,
        payer: account(1).address,
        amount: String(cost),
      })
      expect(extensions).toMatchObject({
        usage: { info: { ceiling: String(ceiling), units: { input: 7, output: 20 } } },
      })
      await until('it is recorded', () => shop.payment().delivery === 'delivered')
      expect(shop.payment()).toMatchObject({
        state: 'confirmed',
        delivery: 'delivered',
        transaction_hash: transaction,
        amount_atomic: String(cost),
        ceiling_atomic: String(ceiling),
      })
      expect(shop.authorization()).toMatchObject({ state: 'sent', charge_atomic: String(cost) })
    })

  test('a whole answer is held until its charge is confirmed', async () => {
    shop.upstream.script = answering(usage(7, 20))
    const credential = await shop.sign()
    const before = await shop.paid()
    await setAutomine(shop.chain(), false)
    const buyer = openBuyer(shop.chat(), credential)
    try {
      await shop.settles('broadcast')
      const hash = String(shop.payment().transaction_hash)
      await until('the node has it', async () =>
        Boolean(await shop.chain().rpc('eth_getTransactionByHash', [hash])),
      )
      // The answer of another buyer goes the whole way meanwhile, on another chain.
      expect((await shop.buy({ network: robinhood, buyer: 2 })).status).toBe(200)
      expect(buyer.got()).toBe('')
      expect(await shop.paid()).toBe(before)
      await mine(shop.chain())
      await until('the buyer has the answer', () => buyer.got().includes(usage(7, 20)))
      expect(await shop.paid()).toBe(before + BigInt(costOf(7, 20)))
    } finally {
      await setAutomine(shop.chain(), true)
      await buyer.leave()
    }
  })

  test('a payment of more than the ceiling of its request is charged by usage', async () => {
    shop.upstream.script = answering(usage(7, 20))
    const response = await shop.buy({ ceiling: 50_000n, accepted: { amount: '50000' } })
    expect(response.status).toBe(200)
    expect(settlementOf(response)).toMatchObject({ amount: String(costOf(7, 20)) })
  })

  test('error: a payment below the ceiling of its request is refused', async () => {
    const ceiling = await ceilingOf()
    const wrong = [
      { ceiling: ceiling - 1n, accepted: { amount: String(ceiling - 1n) } },
      { ceiling: ceiling - 1n },
      { ceiling: 50_001n, accepted: { amount: '50001' } },
      { ceiling: 1n << 250n, accepted: { amount: String(1n << 250n) } },
    ]
    for (const terms of wrong) {
      const response = await shop.buy(terms)
      expect(response.status).toBe(402)
      expect(settlementOf(response)).toMatchObject({ success: false, transaction: '' })
    }
    expect(shop.upstream.requests).toEqual([])
  })
})

describe('a payer without an allowance', () => {
  test('a payer without an allowance pays with an EIP-2612 permit of the ceiling', async () => {
    const wallet = freshWallet()
    await setTokens(shop.chain(robinhood), shop.asset(robinhood), [wallet.address], 1_000_000n)
    const ceiling = await ceilingOf(robinhood)
    const permitOf = async (value: bigint, deadline = inSeconds(400)) => {
      const signature = await wallet.signTypedData({
        domain: {
          ...domains[4663],
          chainId: 4663,
          verifyingContract: shop.asset(robinhood),
        },
        types: {
          Permit: [
            { name: 'owner', type: 'address' },
            { name: 'spender', type: 'address' },
            { name: 'value', type: 'uint256' },
            { name: 'nonce', type: 'uint256' },
            { name: 'deadline', type: 'uint256' },
          ],
        },
        primaryType: 'Permit',
        message: { owner: wallet.address, spender: permit2Address, value, nonce: 0n, deadline },
      })
      const info = {
        from: wallet.address,
        asset: shop.asset(robinhood),
        spender: permit2Address,
        amount: String(value),
        nonce: '0',
        deadline: String(deadline),
        signature,
        version: '1',
      }
      return { eip2612GasSponsoring: { info, schema: {} } }
    }
    const terms = { network: robinhood, signer: wallet }
    shop.upstream.script = answering(usage(7, 20))
    const none = await shop.buy(terms)
    expect(settlementOf(none)).toMatchObject({ errorReason: 'permit2_allowance_required' })
    for (const value of [ceiling - 1n, ceiling + 1n, 10_000_000n]) {
      const response = await shop.buy({ ...terms, extensions: await permitOf(value) })
      expect(settlementOf(response)).toMatchObject({ errorReason: 'permit2_2612_amount_mismatch' })
    }
    // It would end before the charge can be settled.
    const short = await shop.buy({
      ...terms,
      extensions: await permitOf(ceiling, inSeconds(60)),
    })
    expect(settlementOf(short)).toMatchObject({ errorReason: 'permit2_deadline_expired' })
    expect(shop.upstream.requests).toEqual([])
    const response = await shop.buy({ ...terms, extensions: await permitOf(ceiling) })
    expect([response.status, await response.text()]).toEqual([200, usage(7, 20)])
    expect(await shop.tokensOf(wallet.address, robinhood)).toBe(1_000_000n - BigInt(costOf(7, 20)))
  })

  test('a payer without an allowance pays with a signed approve that is sent for it', async () => {
    const wallet = freshWallet()
    const chain = shop.chain(robinhood)
    await setTokens(chain, shop.asset(robinhood), [wallet.address], 1_000_000n)
    await age(chain)
    shop.upstream.script = answering(usage(7, 20))
    const info = {
      from: wallet.address,
      asset: shop.asset(robinhood),
      spender: permit2Address,
      amount: String((1n << 256n) - 1n),
      signedTransaction: await signApprove(chain, wallet.privateKey, shop.asset(robinhood)),
      version: '1',
    }
    const response = await shop.buy({
      network: robinhood,
      signer: wallet,
      extensions: { erc20ApprovalGasSponsoring: { info, schema: {} } },
    })
    expect([response.status, await response.text()]).toEqual([200, usage(7, 20)])
    expect(await shop.tokensOf(wallet.address, robinhood)).toBe(1_000_000n - BigInt(costOf(7, 20)))
  })
})

describe('an ERC-1271 wallet', () => {
  async function walletOf(owner: Address): Promise<Address> {
    const wallet = getAddress(await deploy(shop.chain(), Wallets.SmartWallet, [owner]))
    await setTokens(shop.chain(), shop.asset(), [wallet], 1_000_000n)
    await setAllowances(shop.chain(), shop.asset(), [wallet], 1_000_000n)
    return wallet
  }

  test('pays', async () => {
    const wallet = await walletOf(account(1).address)
    shop.upstream.script = answering(usage(7, 20))
    const response = await shop.buy({ from: wallet })
    expect([response.status, await response.text()]).toEqual([200, usage(7, 20)])
    expect(settlementOf(response)).toMatchObject({ payer: wallet, amount: String(costOf(7, 20)) })
    expect(await shop.tokensOf(wallet)).toBe(1_000_000n - BigInt(costOf(7, 20)))
  })

  test('error: an ERC-1271 wallet that does not accept the signature is refused', async () => {
    const wallet = await walletOf(account(2).address)
    const response = await shop.buy({ from: wallet })
    expect(response.status).toBe(402)
    expect(settlementOf(response)).toMatchObject({ errorReason: 'invalid_permit2_signature' })
    expect(shop.upstream.requests).toEqual([])
  })

  test('error: an ERC-1271 wallet that stops accepting the signature before the charge gets no answer', async () => {
    const wallet = await walletOf(account(1).address)
    shop.upstream.script = async (_, reply) => {
      await shop.chain().rpc('anvil_setCode', [wallet, '0x60006000fd'])
      reply.send(200, usage(7, 20), json)
    }
    const response = await shop.buy({ from: wallet })
    expect(response.status).toBe(402)
    expect(await response.text()).not.toContain('completion_tokens')
    expect(shop.authorization().state).toBe('failed')
    expect(await shop.tokensOf(wallet)).toBe(1_000_000n)
  })
})

describe('what may settle', () => {
  test('error: a facilitator that is no relayer of ours is refused', async () => {
    for (const index of [3, 7, 9]) {
      const response = await shop.buy({
        facilitator: account(index).address,
        accepted: { extra: { facilitatorAddress: account(index).address } },
      })
      expect(response.status).toBe(402)
      const named = await shop.buy({ facilitator: account(index).address })
      expect(settlementOf(named)).toMatchObject({ success: false, transaction: '' })
    }
    expect(shop.upstream.requests).toEqual([])
    expect(shop.rows("SELECT * FROM authorizations WHERE facilitator NOT LIKE '0xf39%'")).toEqual(
      [],
    )
  })

  test('error: another payee, and another signer than the payer, are refused', async () => {
    const responses = [
      await shop.buy({ to: account(9).address }),
      await shop.buy({ buyer: 2, from: account(1).address }),
    ]
    for (const { status } of responses) expect(status).toBe(402)
    expect(shop.upstream.requests).toEqual([])
  })

  test('error: an authorization that ends before the slowest answer is settled is refused', async () => {
    // The upstream has 3 s, its charge 30 s.
    const early = await shop.buy({ slug: 'quick', deadline: inSeconds(29) })
    expect(settlementOf(early)).toMatchObject({ errorReason: 'permit2_deadline_expired' })
    const usual = await shop.buy({ deadline: inSeconds(32) })
    expect(settlementOf(usual)).toMatchObject({ errorReason: 'permit2_deadline_expired' })
    const late = await shop.buy({ deadline: inSeconds(4000) })
    expect(settlementOf(late)).toMatchObject({ errorReason: 'permit2_deadline_expired' })
    expect(shop.upstream.requests).toEqual([])
    shop.upstream.script = answering(usage(1, 1))
    expect((await shop.buy({ slug: 'quick', deadline: inSeconds(60) })).status).toBe(200)
  })

  test('error: a chain without the proxy, and a ceiling above unsettled_max, have no offer', async () => {
    const { required } = await ask(shop.chat('dear'), { method: 'POST', headers: json, body })
    expect(required.accepts.map(({ scheme }) => scheme)).not.toContain('upto')
    expect(required.accepts.map(({ scheme }) => scheme)).toContain('exact')
  })
})

test('error: a balance below the ceiling is refused, although the charge would be lower', async () => {
  const wallet = freshWallet()
  const ceiling = await ceilingOf()
  await setTokens(shop.chain(), shop.asset(), [wallet.address], ceiling - 1n)
  await setAllowances(shop.chain(), shop.asset(), [wallet.address], ceiling)
  const poor = await shop.buy({ signer: wallet })
  expect(settlementOf(poor)).toMatchObject({ errorReason: 'permit2_insufficient_balance' })
  await setTokens(shop.chain(), shop.asset(), [wallet.address], ceiling)
  await execute(shop.chain(), [
    {
      from: account(1).address,
      to: shop.asset(),
      data: encodeFunctionData({
        abi: parseAbi(['function transfer(address to, uint256 value) returns (bool)']),
        args: [wallet.address, 1n],
      }),
    },
  ])
  shop.upstream.script = answering(usage(7, 20))
  expect((await shop.buy({ signer: wallet })).status).toBe(200)
})
