import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type FrontProxy, findProgram, type Place, sample, startFrontProxy } from './front-proxy'

/** Path of an nginx on this machine, if there is one. NGINX names another one, or none if empty. */
export const nginxPath = findProgram('nginx', [
  '/usr/sbin/nginx',
  '/usr/local/sbin/nginx',
  '/opt/homebrew/bin/nginx',
])

export type Nginx = FrontProxy & { redirectUrl: string }

/**
 * nginx in front of a server by the sample of deploy/: buffers and limits of heads are its
 * defaults. Only ports, certificates and the server are replaced. Throws when it does not start.
 */
export async function startNginx(target: string): Promise<Nginx> {
  if (nginxPath === undefined) throw new Error('there is no nginx')
  const { place, ...proxy } = await startFrontProxy(target, write)
  return { ...proxy, redirectUrl: `http://127.0.0.1:${place.redirectPort}` }
}

function write(place: Place): string[] {
  const { directory, port, tlsPort, redirectPort, target, certFile, keyFile } = place
  const live = '/etc/letsencrypt/live/api.example.com'
  const servers = sample('nginx.conf', [
    ['listen 443 ssl;', `listen 127.0.0.1:${tlsPort} ssl; listen 127.0.0.1:${port};`],
    ['listen [::]:443 ssl;', ''],
    ['listen 80;', `listen 127.0.0.1:${redirectPort};`],
    ['listen [::]:80;', ''],
    [`${live}/fullchain.pem`, certFile],
    [`${live}/privkey.pem`, keyFile],
    ['http://127.0.0.1:4020', target],
  ])
  const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    .map((name) => `${name}_temp_path ${directory}/${name};`)
    .join('\n')
  const file = join(directory, 'nginx.conf')
  writeFileSync(
    file,
    `daemon off;
master_process off;
pid ${directory}/pid;
error_log stderr;
events {}
http {
  access_log off;
  ${paths}
  ${servers}
}`,
  )
  return [nginxPath ?? '', '-p', directory, '-e', 'stderr', '-c', file]
}
