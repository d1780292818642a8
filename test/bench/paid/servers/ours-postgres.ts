// The gateway of ours.ts on PostgreSQL. Arguments: the chain's URL, the database's URL, and optionally the
// number of relayers.

import { account } from '../../../../src/demo/accounts'
import { shippedConfig, shippedEnv } from '../../shipped'
import { networkId } from '../network'
import { serveGateway } from './gateway'

const [rpcUrl = '', databaseUrl = '', relayers = '1'] = process.argv.slice(2)
const keys = Array.from({ length: Number(relayers) }, (_, index) => account(index).privateKey)
const secret = '11'.repeat(32)
await serveGateway(shippedConfig({ [networkId]: rpcUrl }), {
  env: {
    ...shippedEnv,
    RELAYER_KEYS: keys.join(','),
    DESK_KEY: account(0).privateKey,
    CHALLENGE_SECRETS: secret,
    RECEIPT_KEY: secret,
    ADMIN_TOKEN: 'the-token-of-the-benchmark',
    DATABASE_URL: databaseUrl,
  },
})
