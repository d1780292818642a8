import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const known = ['/usr/sbin/nginx', '/usr/local/sbin/nginx', '/opt/homebrew/bin/nginx']

/** Path of an nginx on this machine, if there is one. NGINX names another one, or none if empty. */
export const nginxPath =
  process.env.NGINX === undefined
    ? (Bun.which('nginx') ?? known.find((path) => existsSync(path)))
    : process.env.NGINX || undefined

export type Nginx = { url: string; stop(): Promise<void> }

/**
 * nginx in front of a server, configured only by `proxy_pass`: buffers, timeouts and protocol are
 * its defaults. Throws when there is none or it does not start.
 */
export async function startNginx(target: string): Promise<Nginx> {
  if (nginxPath === undefined) throw new Error('there is no nginx')
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-nginx-'))
  const port = await freePort()
  const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    .map((name) => `${name}_temp_path ${directory}/${name};`)
    .join('\n')
  writeFileSync(
    join(directory, 'nginx.conf'),
    `daemon off;
master_process off;
pid ${directory}/pid;
error_log stderr;
events {}
http {
  access_log off;
  ${paths}
  server {
    listen 127.0.0.1:${port};
    location / { proxy_pass ${target}; }
  }
}`,
  )
  const child = Bun.spawn(
    [nginxPath, '-p', directory, '-e', 'stderr', '-c', join(directory, 'nginx.conf')],
    { stdin: 'ignore', stdout: 'ignore', stderr: 'pipe' },
  )
  const said = new Response(child.stderr).text()
  const stop = async () => {
    child.kill()
    await child.exited
    rmSync(directory, { recursive: true, force: true })
  }
  while (!(await listens(port))) {
    if (child.exitCode === null) continue
    await stop()
    throw new Error(`nginx does not start: ${await said}`)
  }
  return { url: `http://127.0.0.1:${port}`, stop }
}

/** nginx cannot choose a free port itself. */
function freePort(): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>()
  const server = net.createServer().once('error', reject)
  server.listen(0, '127.0.0.1', () => {
    const address = server.address()
    server.close(() => resolve(typeof address === 'object' && address ? address.port : 0))
  })
  return promise
}

function listens(port: number): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>()
  const socket = net.connect(port, '127.0.0.1')
  socket.on('connect', () => resolve(true))
  socket.on('error', () => resolve(false))
  return promise.finally(() => socket.destroy())
}
