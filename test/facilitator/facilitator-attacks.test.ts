import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import {
  type Address,
  concat,
  encodeAbiParameters,
  encodeFunctionData,
  getAddress,
  type Hex,
  maxUint256,
  parseAbi,
  parseAbiParameters,
  parseSignature,
} from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import { type Chain, execute } from '../../src/demo/chains'
import type { Id } from '../../src/protocol/Network'
import * as Permit from '../../src/protocol/Permit'
import { inSeconds } from '../harness/buyer'
import { deploy } from '../harness/chains'
import { type Body, type Made, makeBody, post } from '../harness/facilitation'
import { payee, type Shop, startShop } from '../harness/shop'
import * as Wallets from '../harness/wallets'

/** Attacks of payers, observers and wallets on the facilitator; numbers as in the catalogue of attacks. */

const base: Id = 'eip155:8453'
const robinhood: Id = 'eip155:4663'

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    adjust: (config) => ({
      ...config,
      facilitator: { ...config.facilitator, verifyPerMinute: 1e6, settlePerMinute: 1e6 },
    }),
  })
})
afterAll(() => shop?.stop())
beforeEach(() => {
  for (const tap of Object.values(shop.taps)) tap.intercept = undefined
})

const abi = parseAbi([
  'function transfer(address to, uint256 value) returns (bool)',
  'function mint(address to, uint256 value)',
  'function approve(address spender, uint256 value) returns (bool)',
  'function transferWithAuthorization(address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce, uint8 v, bytes32 r, bytes32 s)',
  'function cancelAuthorization(address authorizer, bytes32 nonce, uint8 v, bytes32 r, bytes32 s)',
])

function networkOf(id: Id) {
  const network = shop.config.networks.find((each) => each.id === id)
  if (network === undefined) throw new Error(`no ${id}`)
  return network
}
function chainOf(id: Id): Chain {
  const chain = shop.chains[id]
  if (chain === undefined) throw new Error(`no ${id}`)
  return chain
}
const make = (id: Id, made?: Made) => makeBody(networkOf(id), made)
const verify = async (body: unknown) => (await post(`${shop.url}/verify`, body)).json
const settle = async (body: unknown) => (await post(`${shop.url}/settle`, body)).json

const call = (id: Id, from: Address, data: Hex) =>
  execute(chainOf(id), [{ from, to: networkOf(id).asset.address, data }])
const mint = (id: Id, to: Address, value: bigint) =>
  call(id, account(9).address, encodeFunctionData({ abi, functionName: 'mint', args: [to, value] }))
const fresh = () => {
  const bytes = crypto.getRandomValues(new Uint8Array(32))
  return privateKeyToAccount(`0x${Buffer.from(bytes).toString('hex')}`)
}

/** Does something on chain after the simulation, before our transaction arrives. */
function beforeSend(id: Id, act: () => Promise<unknown>): void {
  const tap = shop.taps[id]
  if (tap === undefined) throw new Error(`no tap for ${id}`)
  tap.intercept = async ({ method }) => {
    if (!method.startsWith('eth_sendRawTransaction')) return undefined
    tap.intercept = undefined
    await act()
    return undefined
  }
}

type Authorization = Record<'from' | 'to' | 'value' | 'validAfter' | 'validBefore' | 'nonce', Hex>

/** The settling call that any reader of the payment can send. */
function settlingCall(body: Body): Hex {
  const { authorization, signature } = body.paymentPayload.payload
  const { from, to, value, validAfter, validBefore, nonce } = authorization as Authorization
  const { v, r, s } = parseSignature(signature)
  const times = [BigInt(value), BigInt(validAfter), BigInt(validBefore)] as const
  const args = [from, to, ...times, nonce, Number(v), r, s] as const
  return encodeFunctionData({ abi, functionName: 'transferWithAuthorization', args })
}

test('attack 9: a balance that is moved after verify is not settled, and nothing is sent', async () => {
  const payer = fresh()
  await mint(base, payer.address, 5_000n)
  const body = await make(base, { from: payer })
  const other = await make(base, { from: payer, to: account(7).address })
  expect((await verify(body)).isValid).toBe(true)
  expect((await settle(other)).success).toBe(true)
  const rows = shop.counts()
  const answer = await settle(body)
  expect(answer).toMatchObject({ success: false, transaction: '' })
  expect(answer.errorReason).toBe('invalid_exact_evm_insufficient_balance')
  expect(answer.errorMessage).toContain(`${payer.address} has 0 USDC (0) on eip155:8453`)
  expect(shop.counts()).toEqual(rows)
})

for (const method of ['eip3009', 'permit2'] as const) {
  test(`attack 10: ${method} concurrent payments above the balance succeed up to the balance`, async () => {
    const id = method === 'permit2' ? robinhood : base
    const payer = fresh()
    await mint(id, payer.address, 10_000n)
    if (method === 'permit2') {
      await chainOf(id).rpc('anvil_setBalance', [payer.address, '0xde0b6b3a7640000'])
      await chainOf(id).rpc('anvil_impersonateAccount', [payer.address])
      const args = [Permit.permit2Address, maxUint256] as const
      await call(id, payer.address, encodeFunctionData({ abi, functionName: 'approve', args }))
    }
    const bodies = await Promise.all(
      Array.from({ length: 6 }, () => make(id, { method, from: payer })),
    )
    const before = await shop.balance(id, payee)
    const answers = await Promise.all(
      bodies.map(async (body) => {
        const { status, json } = await post(`${shop.url}/settle`, body)
        return status === 200 ? json.success : status
      }),
    )
    expect(answers.filter((answer) => answer === true).length).toBeGreaterThan(0)
    expect(answers.filter((answer) => answer === true).length).toBeLessThan(3)
    const paid = answers.filter((answer) => answer === true).length
    expect((await shop.balance(id, payee)) - before).toBe(BigInt(paid) * 5_000n)
  })
}

test('attack 11: an authorization that is cancelled before our transaction is no success', async () => {
  const payer = account(2)
  const body = await make(base, { from: payer.local() })
  const { authorization } = body.paymentPayload.payload
  const { nonce } = authorization as Authorization
  const { asset, chainId } = networkOf(base)
  const signature = await payer.local().signTypedData({
    domain: { ...asset.eip712, chainId, verifyingContract: asset.address },
    types: {
      CancelAuthorization: [
        { name: 'authorizer', type: 'address' },
        { name: 'nonce', type: 'bytes32' },
      ],
    },
    primaryType: 'CancelAuthorization',
    message: { authorizer: payer.address, nonce },
  })
  const { v, r, s } = parseSignature(signature)
  const args = [payer.address, nonce, Number(v), r, s] as const
  const data = encodeFunctionData({ abi, functionName: 'cancelAuthorization', args })
  const before = await shop.balance(base, payee)
  beforeSend(base, () => call(base, account(9).address, data))
  expect((await settle(body)).success).toBe(false)
  expect((await settle(body)).success).toBe(false)
  expect(await shop.balance(base, payee)).toBe(before)
})

test('an external settlement for a payout of this service is one success, ever', async () => {
  const body = await make(base)
  const before = await shop.balance(base, payee)
  beforeSend(base, () => call(base, account(9).address, settlingCall(body)))
  const answer = await settle(body)
  expect(answer).toMatchObject({ success: true, network: base })
  expect(shop.rows(`SELECT * FROM transactions WHERE hash = '${answer.transaction}'`)).toEqual([])
  expect(await settle(body)).toMatchObject({ success: false })
  expect((await shop.balance(base, payee)) - before).toBe(5_000n)
})

test('attack 12: an external settlement for another payee is no success, as another facilitator may report it', async () => {
  const to = account(8).address
  const { config } = shop
  const facilitator = { ...config.facilitator, payTo: [to, payee] }
  expect(await shop.app.reload({ ...config, facilitator })).toEqual([])
  const body = await make(base, { to, requirements: { payTo: to } })
  const before = await shop.balance(base, to)
  beforeSend(base, () => call(base, account(9).address, settlingCall(body)))
  const answer = await settle(body)
  expect(answer).toMatchObject({
    success: false,
    errorReason: 'invalid_exact_evm_nonce_already_used',
    errorMessage: expect.stringMatching(/transaction 0x[0-9a-f]{64}, which is not ours, settled/),
  })
  expect((await shop.balance(base, to)) - before).toBe(5_000n)
  expect(await shop.app.reload(config)).toEqual([])
})

test('attack 12: a payment settled before the call is no success', async () => {
  const before = await shop.balance(base, payee)
  const settled = await make(base)
  await call(base, account(9).address, settlingCall(settled))
  expect(await settle(settled)).toMatchObject({
    success: false,
    errorReason: 'invalid_exact_evm_nonce_already_used',
  })
  expect((await shop.balance(base, payee)) - before).toBe(5_000n)
})

describe('wallets', () => {
  /** A wallet of account 1 with money. */
  async function walletOf(id: Id, mode?: number): Promise<Address> {
    const owner = account(1).address
    const wallet =
      mode === undefined
        ? await deploy(chainOf(id), Wallets.SmartWallet, [owner])
        : await deploy(chainOf(id), Wallets.GreedyWallet, [owner, mode])
    await mint(id, wallet, 1_000_000n)
    return getAddress(wallet)
  }

  test('attack 13: a wallet that wastes all gas, or passes only a simulation, has a limited cost', async () => {
    const balance = async () =>
      BigInt((await chainOf(base).rpc('eth_getBalance', [account(0).address, 'latest'])) as Hex)
    const burning = await make(base, { payer: await walletOf(base, 1) })
    const rows = shop.counts()
    expect((await verify(burning)).isValid).toBe(false)
    expect((await settle(burning)).success).toBe(false)
    expect(shop.counts()).toEqual(rows)
    // Settlement simulates with a gas price, as a transaction has one, so the wallet behaves the
    // same.
    const deceiving = await make(base, { payer: await walletOf(base, 2) })
    const before = await balance()
    expect(await settle(deceiving)).toMatchObject({
      success: false,
      errorReason: 'invalid_exact_evm_signature',
    })
    expect(await balance()).toBe(before)
  })

  test('attack 14: the factory of a wallet that is not deployed is not called', async () => {
    const wallet = fresh().address
    await mint(base, wallet, 1_000_000n)
    const drain = encodeFunctionData({
      abi,
      functionName: 'transfer',
      args: [account(8).address, 1n],
    })
    const wrap = (inner: Hex): Hex =>
      concat([
        encodeAbiParameters(parseAbiParameters('address, bytes, bytes'), [
          networkOf(base).asset.address,
          drain,
          inner,
        ]),
        `0x${'6492'.repeat(16)}`,
      ])
    const rows = shop.counts()
    const body = await make(base, { payer: wallet, signature: wrap })
    expect(await verify(body)).toMatchObject({
      isValid: false,
      invalidReason: 'eip6492_factory_not_allowed',
    })
    expect(await settle(body)).toMatchObject({
      success: false,
      errorReason: 'eip6492_factory_not_allowed',
      transaction: '',
    })
    expect(shop.counts()).toEqual(rows)
    // Once it is deployed its own signature counts, and the wrapper has no effect.
    const deployed = await make(base, { payer: await walletOf(base), signature: wrap })
    expect(await verify(deployed)).toMatchObject({ isValid: true })
    expect(await settle(deployed)).toMatchObject({ success: true })
    expect(await settle(deployed)).toMatchObject({ success: false })
  })
})

test('attack 17: an authorization that is about to expire is not settled', async () => {
  const body = await make(base, { validBefore: inSeconds(5) })
  expect((await settle(body)).errorReason).toBe(
    'invalid_exact_evm_payload_authorization_valid_before',
  )
})

test('attack 19: a signature for one chain or token is invalid for another', async () => {
  for (const domain of [
    { chainId: 84532 },
    { verifyingContract: networkOf('eip155:84532').asset.address },
  ]) {
    const answer = await settle(await make(base, { domain }))
    expect([domain, answer.errorReason]).toEqual([domain, 'invalid_exact_evm_signature'])
  }
})

describe('permits of payers without gas', () => {
  const poor = account(4)
  const info = async (changes: Record<string, unknown> = {}, value = 5_000n) => {
    const { asset, chainId } = networkOf(robinhood)
    const deadline = inSeconds(300)
    const nonces = encodeFunctionData({
      abi: parseAbi(['function nonces(address) view returns (uint256)']),
      args: [poor.address],
    })
    const nonce = BigInt(
      (await chainOf(robinhood).rpc('eth_call', [
        { to: asset.address, data: nonces },
        'latest',
      ])) as Hex,
    )
    const signature = await poor.local().signTypedData({
      domain: { ...asset.eip712, chainId, verifyingContract: asset.address },
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
      message: { owner: poor.address, spender: Permit.permit2Address, value, nonce, deadline },
    })
    return {
      from: poor.address,
      asset: asset.address,
      spender: Permit.permit2Address,
      amount: String(value),
      nonce: String(nonce),
      deadline: String(deadline),
      signature,
      version: '1',
      ...changes,
    }
  }
  const sponsored = async (told: object | undefined) =>
    make(robinhood, {
      method: 'permit2',
      from: poor.local(),
      ...(told === undefined
        ? {}
        : { extensions: { eip2612GasSponsoring: { info: told, schema: {} } } }),
    })

  const wrong: readonly [string, Record<string, unknown>, string][] = [
    ['another payer', { from: account(5).address }, 'eip2612_from_mismatch'],
    ['another asset', { asset: account(5).address }, 'eip2612_asset_mismatch'],
    ['another spender', { spender: account(5).address }, 'eip2612_spender_not_permit2'],
    ['an old deadline', { deadline: '1' }, 'eip2612_deadline_expired'],
    ['another amount', { amount: '5001' }, 'permit2_2612_amount_mismatch'],
    ['a hex amount', { amount: '0x1388' }, 'invalid_eip2612_extension_format'],
    ['a short signature', { signature: '0x1234' }, 'invalid_eip2612_extension_format'],
    ['a version of text', { version: 'one' }, 'invalid_eip2612_extension_format'],
    [
      'a signature without a signer',
      { signature: `0x${'11'.repeat(64)}1b` },
      'permit2_allowance_required',
    ],
    ['only the declaration', { signature: '' }, 'permit2_allowance_required'],
  ]
  for (const [what, changes, code] of wrong) {
    test(`error: a permit with ${what} is refused as ${code}`, async () => {
      const rows = shop.counts()
      const body = await sponsored(await info(changes))
      expect(await verify(body)).toMatchObject({ isValid: false, invalidReason: code })
      expect(await settle(body)).toMatchObject({ success: false, errorReason: code })
      expect(shop.counts()).toEqual(rows)
    })
  }

  test('a valid permit is settled in the same transaction, once, and leaves no allowance', async () => {
    expect(await verify(await sponsored(undefined))).toMatchObject({
      invalidReason: 'permit2_allowance_required',
    })
    const body = await sponsored(await info())
    expect(await verify(body)).toMatchObject({ isValid: true })
    const answers = await Promise.all([settle(body), settle(body)])
    expect(answers.filter(({ success }) => success === true)).toHaveLength(1)
    expect(await verify(await sponsored(undefined))).toMatchObject({
      invalidReason: 'permit2_allowance_required',
    })
  })
})
