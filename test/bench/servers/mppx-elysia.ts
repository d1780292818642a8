// mppx's Elysia middleware with its own settlement, tuned as far as viem allows. Arguments: the
// chain's URL; `sync` to send by eth_sendRawTransactionSync instead of polling for the receipt.

import { Elysia } from 'elysia'
import { evm, Mppx } from 'mppx/elysia'
import {
  createWalletClient,
  type Hex,
  http,
  nonceManager,
  parseAbi,
  parseSignature,
  publicActions,
} from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { base } from 'viem/chains'
import { account } from '../../../src/demo/accounts'
import { payee } from '../shipped'

const [rpcUrl = '', mode = 'polling'] = process.argv.slice(2)
const abi = parseAbi([
  'function transferWithAuthorization(address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce, uint8 v, bytes32 r, bytes32 s)',
])
const wallet = createWalletClient({
  account: privateKeyToAccount(account(0).privateKey, { nonceManager }),
  chain: base,
  transport: http(rpcUrl),
  pollingInterval: 50,
}).extend(publicActions)

type Settle = NonNullable<Parameters<typeof evm>[0]['settle']>

const settle: Settle = async ({ payload, request }) => {
  const { r, s, v = 27n } = parseSignature(payload.signature as Hex)
  const call = {
    address: request.currency as Hex,
    abi,
    functionName: 'transferWithAuthorization',
    args: [
      payload.from as Hex,
      payload.to as Hex,
      BigInt(payload.value),
      BigInt(payload.validAfter),
      BigInt(payload.validBefore),
      payload.nonce as Hex,
      Number(v),
      r,
      s,
    ],
  } as const
  const receipt =
    mode === 'sync'
      ? await wallet.writeContractSync(call)
      : await wallet.waitForTransactionReceipt({ hash: await wallet.writeContract(call) })
  if (receipt.status !== 'success') throw new Error('the transfer failed')
  return { reference: receipt.transactionHash }
}

const mppx = Mppx.create({
  realm: 'localhost',
  secretKey: 'bench-bench-bench-bench-bench-bench',
  methods: [evm({ currency: evm.assets.base.USDC, recipient: payee, settle })],
})
const elysia = new Elysia().guard(
  { beforeHandle: mppx.evm.charge({ amount: '0.01' }) },
  (guarded) => guarded.get('/m/catjoke/joke', () => ({ joke: 'A cat walks into a paywall.' })),
)
elysia.listen({ port: 0, hostname: '127.0.0.1' })
process.stdout.write(`http://127.0.0.1:${elysia.server?.port}\n`)
