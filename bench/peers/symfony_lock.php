<?php
/* A worker in PHP: what ../worker.h describes, with Symfony's lock on memcached. */

use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\MemcachedStore;

require 'Symfony/Component/Lock/autoload.php';

[, $server, $name] = $argv;
[$host, $port] = explode(':', $server);
$memcached = new Memcached();
$memcached->addServer($host, (int) $port);
$lock = (new LockFactory(new MemcachedStore($memcached)))->createLock($name);

function now(): float
{
    return hrtime(true) / 1e9;
}

function cpu(): float
{
    $used = getrusage();
    return $used['ru_utime.tv_sec'] + $used['ru_stime.tv_sec']
        + ($used['ru_utime.tv_usec'] + $used['ru_stime.tv_usec']) / 1e6;
}

function rest(float $seconds): void
{
    usleep((int) max(0, $seconds * 1e6));
}

function run($lock, float $seconds): string
{
    $cycles = 0;
    $start = now();
    $cpu = cpu();
    do {
        $lock->acquire();
        $lock->release();
        $cycles++;
    } while (now() - $start < $seconds);
    return sprintf('%d %.9f %.9f', $cycles, now() - $start, cpu() - $cpu);
}

function compete($lock, string $path, float $start, float $stop, float $hold, float $pause): string
{
    $journal = fopen($path, 'a');
    stream_set_write_buffer($journal, 0);
    rest($start - now());
    while (($asked = now()) < $stop) {
        fwrite($journal, sprintf("asked %.9f\n", $asked));
        $lock->acquire(true);
        $got = now();
        rest($hold);
        fwrite($journal, sprintf("held %.9f %.9f\n", $got, now()));
        $lock->release();
        rest($pause * mt_rand() / mt_getrandmax());
    }
    return 'ok';
}

echo "ready\n";
while (($line = fgets(STDIN)) !== false) {
    $words = explode(' ', trim($line));
    $command = array_shift($words);
    if ($command === 'run') {
        echo run($lock, (float) $words[0]), "\n";
    } elseif ($command === 'compete') {
        $path = array_shift($words);
        echo compete($lock, $path, ...array_map('floatval', $words)), "\n";
    } else {
        echo $lock->$command() === false ? 'no' : 'ok', "\n";
    }
}
