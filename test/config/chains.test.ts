import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { x402ExactPermit2ProxyABI } from '@x402/evm'
import {
  type Address,
  concat,
  type Hex,
  keccak256,
  numberToHex,
  parseSignature,
  toEventSelector,
  toFunctionSelector,
} from 'viem'
import { account } from '../../src/demo/accounts'
import {
  balanceOf,
  type Chain,
  execute,
  mintedAtomic,
  type NodeReceipt,
  prepareChain,
  RpcError,
} from '../../src/demo/chains'
import * as Artifacts from '../../src/demo/contracts/artifacts'
import * as Permit from '../../src/protocol/Permit'
import * as Transfer from '../../src/protocol/Transfer'
import * as Upto from '../../src/protocol/Upto'
import { deploy, revert, snapshot, startChains } from '../harness/chains'
import { outcomeOf } from '../harness/outcome'
import {
  type Authorization,
  authorization,
  base,
  encode,
  later,
  list,
  type Net,
  nextNonce,
  payee,
  permitted,
  robinhood,
  sepolia,
  sign,
  vrs,
} from '../harness/stablecoin'
import * as Wallets from '../harness/wallets'
import vector from '../protocol/fixtures/mpp-permit2-vector.json'

const token = Artifacts.Stablecoin.abi
const proxy = x402ExactPermit2ProxyABI
const relayer = account(0).address
const transferTopic = toEventSelector('Transfer(address,address,uint256)')
const usedTopic = toEventSelector('AuthorizationUsed(address,bytes32)')
const alreadyUsedTopic = toEventSelector('AuthorizationAlreadyUsed(address,bytes32)')

const chains = new Map<number, Chain>()
const on = (network: Net): Chain => {
  const chain = chains.get(network.chainId)
  if (!chain) throw new Error('not started')
  return chain
}

beforeAll(async () => {
  for (const chain of await startChains([base, sepolia, robinhood]))
    chains.set(chain.chainId, chain)
})
afterAll(async () => {
  await Promise.all([...chains.values()].map((chain) => chain.stop()))
})

async function send(
  network: Net,
  data: Hex,
  to: Address = network.asset.address,
): Promise<NodeReceipt> {
  const [receipt] = await execute(on(network), [{ from: relayer, to, data, gas: 1_000_000n }])
  if (!receipt) throw new Error('no receipt')
  return receipt
}

async function call(network: Net, data: Hex, to: Address = network.asset.address): Promise<Hex> {
  const request = { from: relayer, to, data, gas: numberToHex(1_000_000) }
  return (await on(network).rpc('eth_call', [request, 'latest'])) as Hex
}

/** The reason text, or the data of a custom error. */
async function failure(promise: Promise<unknown>): Promise<string> {
  const error = await promise.then(
    () => undefined,
    (reason: unknown) => reason,
  )
  if (!(error instanceof RpcError)) throw new Error('expected the node to refuse')
  expect(error.code).toBe(3)
  const text = error.message.replace('eth_call: execution reverted: ', '')
  return text.startsWith('custom error') ? String(error.data) : text
}

const held = (network: Net, holder: Address) =>
  balanceOf(on(network), network.asset.address, holder)

describe('contracts in place', () => {
  test('the token has the DOMAIN_SEPARATOR of the public chain', async () => {
    const data = encode(token, 'DOMAIN_SEPARATOR', [])
    expect(await call(base, data)).toBe(
      '0x02fa7265e7c5d81118673727957699e4d68f74cd74b7db77da710fe8a2c7834f',
    )
    expect(await call(sepolia, data)).toBe(
      '0x71f17a3b2ff373b803d70a5a07c046c1a2bc8e89c09ef722fcb047abe94c9818',
    )
    expect(await call(robinhood, data)).toBe(
      '0x7a3d7400b27830f4f91c2c16a082486d67c1befecaec2f53b33f1f35d5b62036',
    )
  })

  test('Permit2 is the real one, with the domain of chain 4663', async () => {
    const data = encode(token, 'DOMAIN_SEPARATOR', [])
    expect(await call(robinhood, data, Permit.permit2Address)).toBe(
      '0x448684463b1f7965c1ec7c249cee11520df24c07242efc2b20f6e54c85614fad',
    )
    const pointer = await call(robinhood, encode(proxy, 'PERMIT2', []), Permit.proxyAddress)
    expect(pointer).toBe(`0x${Permit.permit2Address.slice(2).toLowerCase().padStart(64, '0')}`)
  })

  test('the proxies of `exact` and `upto` are on every chain', async () => {
    for (const network of [base, sepolia, robinhood]) {
      const hashAt = async (address: Address) =>
        keccak256((await on(network).rpc('eth_getCode', [address, 'latest'])) as Hex)
      // Of the codes on Base.
      expect(await hashAt(Permit.proxyAddress)).toBe(
        '0xce6429c0bb49284660683287c0a8fe548a88379072327d026626909d202048b9',
      )
      expect(await hashAt(Upto.proxyAddress)).toBe(
        '0x4662dc27323421a3698be49ac95f7b0dba141c238d31ef543248d1a11f8d8eec',
      )
    }
  })

  test('accounts 1 to 5 hold tokens, 1 and 2 approved Permit2, 3 to 5 have no gas on 4663', async () => {
    const balances = await Promise.all([1, 5, 6].map((index) => held(base, account(index).address)))
    expect(balances).toEqual([mintedAtomic, mintedAtomic, 0n])
    const allowance = (index: number) =>
      call(robinhood, encode(token, 'allowance', [account(index).address, Permit.permit2Address]))
    expect(BigInt(await allowance(2))).toBe(2n ** 256n - 1n)
    expect(BigInt(await allowance(3))).toBe(0n)
    const gas = (network: Net, index: number) =>
      on(network).rpc('eth_getBalance', [account(index).address, 'latest'])
    expect(await gas(robinhood, 3)).toBe('0x0')
    expect(await gas(base, 3)).not.toBe('0x0')
    expect(await gas(robinhood, 0)).not.toBe('0x0')
    expect(await on(robinhood).rpc('eth_getTransactionCount', [relayer, 'latest'])).toBe('0x0')
  })

  test('error: USDG has no version()', async () => {
    expect(await call(base, encode(token, 'version', []))).toContain('32')
    expect(await failure(call(robinhood, encode(token, 'version', [])))).toBe('0x800ab12c')
  })

  test('error: a chain is prepared once, and only with the network of its id', async () => {
    const id = await snapshot(on(base))
    expect(await outcomeOf(prepareChain(on(base), base))).toThrow('failed')
    expect(await outcomeOf(prepareChain(on(base), sepolia))).toThrow('chain 8453 is not 84532')
    await revert(on(base), id)
  })
})

describe('EIP-3009', () => {
  test('EIP-3009 pays by v, r, s and by bytes', async () => {
    for (const network of [base, robinhood] as const) {
      const before = await held(network, payee)
      for (const unpack of [vrs, (signature: Hex) => [signature]]) {
        const auth = authorization(account(1).address)
        const signature = await sign(network, 1, 'TransferWithAuthorization', auth)
        const data = encode(token, 'transferWithAuthorization', [
          ...list(auth),
          ...unpack(signature),
        ])
        const { logs } = await send(network, data)
        expect(logs.map((log) => log.topics[0])).toEqual([usedTopic, transferTopic])
      }
      expect(await held(network, payee)).toBe(before + 20_000n)
    }
  })

  test('only the payee can call receive, and cancel ends an authorization', async () => {
    const auth = authorization(account(1).address)
    const signature = await sign(base, 1, 'ReceiveWithAuthorization', auth)
    const data = encode(token, 'receiveWithAuthorization', [...list(auth), ...vrs(signature)])
    expect(await failure(call(base, data))).toBe('FiatTokenV2: caller must be the payee')
    await execute(on(base), [{ from: payee, to: base.asset.address, data }])

    const canceled = authorization(account(1).address)
    const cancel = await sign(base, 1, 'CancelAuthorization', {
      authorizer: canceled.from,
      nonce: canceled.nonce,
    })
    await send(
      base,
      encode(token, 'cancelAuthorization', [canceled.from, canceled.nonce, ...vrs(cancel)]),
    )
    const late = await sign(base, 1, 'TransferWithAuthorization', canceled)
    const spend = encode(token, 'transferWithAuthorization', [...list(canceled), late])
    expect(await failure(call(base, spend))).toBe('FiatTokenV2: authorization is used or canceled')
  })

  test('a used nonce reverts on USDC, on USDG it only emits an event', async () => {
    const encodeUsed = async (network: Net) => {
      const auth = authorization(account(2).address)
      const signature = await sign(network, 2, 'TransferWithAuthorization', auth)
      const data = encode(token, 'transferWithAuthorization', [...list(auth), ...vrs(signature)])
      await send(network, data)
      return data
    }
    expect(await failure(call(base, await encodeUsed(base)))).toBe(
      'FiatTokenV2: authorization is used or canceled',
    )
    const data = await encodeUsed(robinhood)
    const before = await held(robinhood, payee)
    const { logs } = await send(robinhood, data)
    expect(logs.map((log) => log.topics[0])).toEqual([alreadyUsedTopic])
    expect(await held(robinhood, payee)).toBe(before)
  })

  test('an ERC-1271 wallet pays by bytes', async () => {
    const wallet = await deploy(on(base), Wallets.SmartWallet, [account(6).address])
    await send(base, encode(token, 'mint', [wallet, 50_000n]))
    const auth = authorization(wallet)
    const pay = async (signer: number) => {
      const signature = await sign(base, signer, 'TransferWithAuthorization', auth)
      return encode(token, 'transferWithAuthorization', [...list(auth), signature])
    }
    expect(await failure(call(base, await pay(5)))).toBe('FiatTokenV2: invalid signature')
    await send(base, await pay(6))
    expect(await held(base, wallet)).toBe(40_000n)
    const data = encode(token, 'transfer', [payee, 40_000n])
    const run = encode(Wallets.SmartWallet.abi, 'execute', [base.asset.address, 0n, data])
    await execute(on(base), [{ from: account(6).address, to: wallet, data: run }])
    expect(await held(base, wallet)).toBe(0n)
  })

  test('the signature of an EIP-7702 account is checked by ERC-1271', async () => {
    const id = await snapshot(on(base))
    const delegate = await deploy(on(base), Wallets.SmartWallet, [relayer])
    await on(base).rpc('anvil_setCode', [account(4).address, concat(['0xef0100', delegate])])
    const auth = authorization(account(4).address)
    const signature = await sign(base, 4, 'TransferWithAuthorization', auth)
    await send(base, encode(token, 'transferWithAuthorization', [...list(auth), signature]))
    await on(base).rpc('anvil_setCode', [
      account(4).address,
      concat(['0xef0100', Permit.permit2Address]),
    ])
    const second = authorization(account(4).address)
    const refused = await sign(base, 4, 'TransferWithAuthorization', second)
    const data = encode(token, 'transferWithAuthorization', [...list(second), refused])
    expect(await failure(call(base, data))).toBe('FiatTokenV2: invalid signature')
    await revert(on(base), id)
  })

  test('error: greedy wallets use all gas, or behave differently in a transaction than in a call', async () => {
    const wallet = await deploy(on(base), Wallets.GreedyWallet, [account(6).address, 2])
    await send(base, encode(token, 'mint', [wallet, 50_000n]))
    const auth = authorization(wallet)
    const signature = await sign(base, 6, 'TransferWithAuthorization', auth)
    const data = encode(token, 'transferWithAuthorization', [...list(auth), signature])
    await call(base, data)
    expect(await outcomeOf(send(base, data))).toThrow('failed')
    await send(base, encode(Wallets.GreedyWallet.abi, 'setMode', [1]), wallet)
    expect(await outcomeOf(call(base, data))).toThrow()
    expect(await held(base, wallet)).toBe(50_000n)
  })

  test('error: revert reasons equal those of the real tokens', async () => {
    const reason = async (network: Net, over: Partial<Authorization>, signer = 1) => {
      const auth = authorization(account(1).address, over)
      const signature = await sign(network, signer, 'TransferWithAuthorization', auth)
      return failure(
        call(network, encode(token, 'transferWithAuthorization', [...list(auth), signature])),
      )
    }
    const poor = { value: mintedAtomic * 2n }
    expect(await reason(base, { validBefore: 1n })).toBe('FiatTokenV2: authorization is expired')
    expect(await reason(base, { validAfter: later })).toBe(
      'FiatTokenV2: authorization is not yet valid',
    )
    expect(await reason(base, {}, 2)).toBe('FiatTokenV2: invalid signature')
    expect(await reason(base, poor)).toBe('ERC20: transfer amount exceeds balance')
    expect(await reason(robinhood, { validBefore: 1n })).toBe('0x0f05f5bf')
    expect(await reason(robinhood, {}, 2)).toBe('0x8baa579f')
    const errors = [await reason(robinhood, { validAfter: later }), await reason(robinhood, poor)]
    const selectors = ['AuthorizationInvalid()', 'InsufficientFunds()'].map((text) =>
      toFunctionSelector(text),
    )
    expect(errors).toEqual(selectors)

    const id = await snapshot(on(base))
    await send(base, encode(token, 'setBlocked', [payee, true]))
    expect(await reason(base, {})).toBe('Blacklistable: account is blacklisted')
    await send(base, encode(token, 'setPaused', [true]))
    expect(await reason(base, {})).toBe('Pausable: paused')
    await revert(on(base), id)
  })
})

describe('Permit2', () => {
  test('the golden vector pays its payee, once', async () => {
    const { permit, witness, signature } = vector.credential.payload
    const data = encode(proxy, 'settle', [
      { ...permit, permitted: permit.permitted[0] },
      vector.owner,
      witness,
      signature,
    ])
    const before = await held(robinhood, payee)
    const { logs } = await send(robinhood, data, Permit.proxyAddress)
    expect(logs.map((log) => log.topics[0])).toEqual([transferTopic, toEventSelector('Settled()')])
    expect(await held(robinhood, payee)).toBe(before + 10_000n)
    const invalidNonce = toFunctionSelector('InvalidNonce()')
    expect(await failure(call(robinhood, data, Permit.proxyAddress))).toBe(invalidNonce)
  })

  test('settleWithPermit pays for an owner without approval and without gas', async () => {
    const [permit, owner, witness, signature] = await permitted(3)
    const refused = encode(proxy, 'settle', [permit, owner, witness, signature])
    expect(await failure(call(robinhood, refused, Permit.proxyAddress))).toBe(
      'TRANSFER_FROM_FAILED',
    )
    const { amount } = permit.permitted
    const message = { owner, spender: Permit.permit2Address, value: amount, nonce: 0n }
    const allow = await sign(robinhood, 3, 'Permit', { ...message, deadline: later })
    const { v, r, s } = parseSignature(allow)
    const encodeWith = (value: bigint) =>
      encode(proxy, 'settleWithPermit', [
        { value, deadline: later, r, s, v: Number(v) },
        permit,
        owner,
        witness,
        signature,
      ])
    expect(await failure(call(robinhood, encodeWith(amount + 1n), Permit.proxyAddress))).toBe(
      toFunctionSelector('Permit2612AmountMismatch()'),
    )
    const { logs } = await send(robinhood, encodeWith(amount), Permit.proxyAddress)
    expect(logs.at(-1)?.topics[0]).toBe(toEventSelector('SettledWithPermit()'))
    expect(await held(robinhood, owner)).toBe(mintedAtomic - amount)
  })

  test('error: the money cannot be redirected or settled too early', async () => {
    const [permit, owner, witness, signature] = await permitted(2)
    const redirected = { ...witness, to: relayer }
    const theft = encode(proxy, 'settle', [permit, owner, redirected, signature])
    expect(await failure(call(robinhood, theft, Permit.proxyAddress))).toBe(
      toFunctionSelector('InvalidSigner()'),
    )
    const early = encode(proxy, 'settle', await permitted(2, { validAfter: later }))
    expect(await failure(call(robinhood, early, Permit.proxyAddress))).toBe(
      toFunctionSelector('PaymentTooEarly()'),
    )
  })
})

describe('protocol calldata', () => {
  test('the digest and the calldata of the protocol pay on the chain, by both methods', async () => {
    for (const method of ['eip3009', 'permit2'] as const) {
      const unsigned = {
        method,
        network: 'eip155:4663' as const,
        chainId: robinhood.chainId,
        asset: robinhood.asset.address,
        payer: account(2).address,
        payee,
        amountAtomic: 7n,
        nonce: nextNonce(),
        validAfter: 0n,
        validBefore: later,
      }
      const digest = Transfer.digest(unsigned, robinhood.asset)
      const hash = `0x${Buffer.from(digest).toString('hex')}` as const
      const signature = await account(2).local().sign?.({ hash })
      const { to, data } = Transfer.call({ ...unsigned, signature: signature ?? '0x' })
      const before = await held(robinhood, payee)
      await send(robinhood, data, to)
      expect(await held(robinhood, payee)).toBe(before + 7n)
    }
  })
})
